"""Models by name."""

from __future__ import annotations

from .resnet import ResNetConfig
from .transformer import TransformerConfig


def _gpt(name: str, layers: int, hidden: int, heads: int, **more: int) -> TransformerConfig:
    sizes = {"vocab": 50257, "positions": 1024, "seq": 1024, **more}
    return TransformerConfig(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        embedding=True,
        head=True,
        **sizes,  # type: ignore[arg-type]
    )


def _korthikanti(name: str, layers: int, hidden: int, heads: int) -> TransformerConfig:
    return _gpt(name, layers, hidden, heads, vocab=51200, positions=2048, seq=2048)


def _llama(
    name: str, layers: int, hidden: int, heads: int, ffn: int, kv_heads: int = 0, **more: int
) -> TransformerConfig:
    sizes = {"vocab": 32000, "seq": 4096, "tied": False, **more}
    return TransformerConfig(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        ffn=ffn,
        dtype="bf16",
        attention="flash",
        gated=True,
        rms_norm=True,
        bias=False,
        dropout=False,
        embedding=True,
        head=True,
        **sizes,  # type: ignore[arg-type]
    )


def _llama3(
    name: str, layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False
) -> TransformerConfig:
    return _llama(name, layers, hidden, heads, ffn, 8, vocab=128256, tied=tied, seq=8192)


PRESETS: dict[str, TransformerConfig | ResNetConfig] = {
    # Radford et al. 2019, table 2, as released.
    "gpt2": _gpt("gpt2", 12, 768, 12),
    "gpt2-medium": _gpt("gpt2-medium", 24, 1024, 16),
    "gpt2-large": _gpt("gpt2-large", 36, 1280, 20),
    "gpt2-xl": _gpt("gpt2-xl", 48, 1600, 25),
    # Korthikanti et al. 2022, table 3.
    "gpt-22b": _korthikanti("gpt-22b", 48, 6144, 64),
    "gpt3-175b": _korthikanti("gpt3-175b", 96, 12288, 96),
    "mt-nlg-530b": _korthikanti("mt-nlg-530b", 105, 20480, 128),
    "gpt-1t": _korthikanti("gpt-1t", 128, 25600, 160),
    # Touvron et al. 2023, "Llama 2".
    "llama2-7b": _llama("llama2-7b", 32, 4096, 32, 11008),
    "llama2-13b": _llama("llama2-13b", 40, 5120, 40, 13824),
    "llama2-70b": _llama("llama2-70b", 80, 8192, 64, 28672, 8),
    # Dubey et al. 2024, "The Llama 3 herd of models", table 3; Llama 3.2 as released.
    "llama3-8b": _llama3("llama3-8b", 32, 4096, 32, 14336),
    "llama3-70b": _llama3("llama3-70b", 80, 8192, 64, 28672),
    "llama3-405b": _llama3("llama3-405b", 126, 16384, 128, 53248),
    "llama3.2-1b": _llama3("llama3.2-1b", 16, 2048, 32, 8192, tied=True),
    "llama3.2-3b": _llama3("llama3.2-3b", 28, 3072, 24, 8192, tied=True),
    # Jiang et al. 2023, "Mistral 7B", table 1, without its window.
    "mistral-7b": _llama("mistral-7b", 32, 4096, 32, 14336, 8, seq=8192),
    # Dosovitskiy et al. 2021, table 1: 14 x 14 patches and a class token.
    "vit-b16": TransformerConfig(
        name="vit-b16",
        num_layers=12,
        hidden=768,
        num_heads=12,
        seq=197,
        batch=32,
        dtype="fp32",
        dropout=False,
        embedding=True,
        head=True,
        patch=16,
        image=224,
        classes=1000,
    ),
    "resnet-50": ResNetConfig(depth=50),
    "resnet-101": ResNetConfig(depth=101),
    "resnet-152": ResNetConfig(depth=152),
}
"""Presets: those of language models carry embedding and head; batch and sequence can be changed."""

BARE_MODEL = "gpt3-175b"
"""The model whose layers ``--layers N`` alone means."""
