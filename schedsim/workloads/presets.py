"""Models by name: the configuration of each, from the one table of sizes."""

from __future__ import annotations

from .architecture import Architecture
from .diffusion import DiTConfig, SDXLConfig
from .known_architectures import ARCHITECTURES
from .language_model import LanguageModelConfig
from .resnet import ResNetConfig
from .transformer import TransformerConfig
from .whisper import WhisperConfig

ModelConfig = (
    TransformerConfig | LanguageModelConfig | ResNetConfig | DiTConfig | SDXLConfig | WhisperConfig
)
"""The configuration of a formula model."""

_SEQUENCES = {"llama3": 8192, "mistral": 8192}
"""Beginning of a name -> sequence length, for models that differ from `SEQUENCE`."""

SEQUENCE = 4096
"""Default number of tokens in a sequence."""


def config_of(model: Architecture) -> TransformerConfig | LanguageModelConfig:
    """The configuration of `model`, by the accounting of `transformer` if that covers the model.

    It does if the heads divide the width and the model has no special parts. Such models can be
    resized
    and split over tensor-parallel ranks.
    """
    sizes = model.attention
    begins = next(
        (seq for name, seq in _SEQUENCES.items() if model.name.startswith(name)), SEQUENCE
    )
    particular = (
        model.experts is not None
        or sizes.kv_rank
        or sizes.head_norm
        or sizes.sinks
        or model.post_norm
        or sizes.query_width != model.hidden
        or (sizes.value != sizes.head_width)
    )
    plain = model.plain_norm and not model.gated and sizes.bias and sizes.output_bias
    llama = model.gated and not (model.plain_norm or sizes.bias or sizes.output_bias)
    if particular or not (plain or llama):
        return LanguageModelConfig(architecture=model, seq=begins)
    kv_heads = sizes.num_kv_heads if sizes.num_kv_heads != sizes.num_heads else 0
    return TransformerConfig(
        name=model.name,
        num_layers=model.num_layers,
        hidden=model.hidden,
        num_heads=sizes.num_heads,
        num_kv_heads=kv_heads,
        ffn=0 if plain and model.ffn_width == 4 * model.hidden else model.ffn_width,
        seq=model.positions or begins,
        vocab=model.vocab,
        positions=model.positions,
        tied=model.tied,
        embedding=True,
        head=True,
        gated=model.gated,
        rms_norm=llama,
        bias=plain,
        dropout=model.dropout,
        dtype="fp16" if plain else "bf16",
        attention="eager" if plain else "flash",
        window=model.window,
        windowed_share=model.num_windowed / model.num_layers if model.window else 0.0,
    )


def _dit(name: str, layers: int, hidden: int, heads: int) -> DiTConfig:
    return DiTConfig(name=name, num_layers=layers, hidden=hidden, num_heads=heads)


def _whisper(
    name: str, layers: int, hidden: int, mels: int = 80, vocab: int = 51865
) -> WhisperConfig:
    return WhisperConfig(name=name, num_layers=layers, hidden=hidden, mels=mels, vocab=vocab)


PRESETS: dict[str, ModelConfig] = {
    **{name: config_of(model) for name, model in ARCHITECTURES.items()},
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
    # Peebles & Xie 2023, table 1, patches of 2.
    "dit-s2": _dit("dit-s2", 12, 384, 6),
    "dit-b2": _dit("dit-b2", 12, 768, 12),
    "dit-l2": _dit("dit-l2", 24, 1024, 16),
    "dit-xl2": _dit("dit-xl2", 28, 1152, 16),
    "sdxl-unet": SDXLConfig(),
    # Radford et al. 2022, table 1, as released.
    "whisper-tiny": _whisper("whisper-tiny", 4, 384),
    "whisper-base": _whisper("whisper-base", 6, 512),
    "whisper-small": _whisper("whisper-small", 12, 768),
    "whisper-medium": _whisper("whisper-medium", 24, 1024),
    "whisper-large-v3": _whisper("whisper-large-v3", 32, 1280, 128, 51866),
}
"""Presets. Language models include embedding and head; batch and sequence can be changed."""

BARE_MODEL = "gpt3-175b"
"""The model whose layers ``--layers N`` takes without a preset."""
