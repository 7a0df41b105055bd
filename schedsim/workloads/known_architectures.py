"""Models whose sizes are published."""

from __future__ import annotations

from .architecture import Architecture, AttentionSizes, ExpertSizes


def _llama(
    name: str, layers: int, hidden: int, heads: tuple[int, int], ffn: int, **more: object
) -> Architecture:
    sizes: dict[str, object] = {"vocab": 128256, **more}
    attention = AttentionSizes(heads[0], heads[1], hidden // heads[0])
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=hidden,
        ffn_width=ffn,
        attention=attention,
        **sizes,  # type: ignore[arg-type]
    )


_LLAMA3 = "Dubey et al. 2024, The Llama 3 herd of models, arXiv 2407.21783, table 3"
_LLAMA2 = "Touvron et al. 2023, Llama 2, arXiv 2307.09288"


_KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, table 3"
_GPT2 = "Radford et al. 2019, table 2, as released"


def _gpt(
    name: str, layers: int, hidden: int, heads: int, vocab: int = 51200, positions: int = 2048
) -> Architecture:
    """Biases everywhere, two products in an MLP, learned positions, the head tied."""
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=hidden,
        vocab=vocab,
        ffn_width=4 * hidden,
        attention=AttentionSizes(heads, heads, hidden // heads, bias=True, output_bias=True),
        gated=False,
        tied=True,
        positions=positions,
        plain_norm=True,
        dropout=True,
        source=_KORTHIKANTI if vocab == 51200 else _GPT2,
    )


def _qwen3(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    ffn: int,
    experts: ExpertSizes | None = None,
    tied: bool = False,
) -> Architecture:
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=hidden,
        vocab=151936,
        ffn_width=ffn,
        attention=AttentionSizes(heads[0], heads[1], 128, head_norm=True),
        experts=experts,
        tied=tied,
        source="Qwen Team 2025, Qwen3 technical report, arXiv 2505.09388, tables 1 and 2",
    )


def _gpt_oss(name: str, layers: int, experts: int) -> Architecture:
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=2880,
        vocab=201088,
        ffn_width=2880,
        attention=AttentionSizes(64, 8, 64, bias=True, output_bias=True, sinks=True),
        experts=ExpertSizes(experts, 4, 2880, bias=True),
        window=128,
        num_windowed=layers // 2,
        source="OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card, arXiv 2508.10925, table 1",
    )


def _gemma3(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    ffn: int,
    vocab: int = 262208,
    window: int = 1024,
) -> Architecture:
    """Four norms a layer, norms of queries and keys, the head tied; the language model alone.

    Every sixth layer sees the whole sequence.
    """
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=hidden,
        vocab=vocab,
        ffn_width=ffn,
        attention=AttentionSizes(*heads, head_norm=True),
        tied=True,
        post_norm=True,
        window=window,
        num_windowed=layers - layers // 6,
        source="Gemma Team 2025, Gemma 3 technical report, arXiv 2503.19786, as released; without "
        "its vision encoder",
    )


def _deepseek(name: str, layers: int, hidden: int, ffn: int, **more: object) -> Architecture:
    sizes: dict[str, object] = {"vocab": 129280, "num_dense_layers": 3, **more}
    return Architecture(
        name=name,
        num_layers=layers,
        hidden=hidden,
        ffn_width=ffn,
        **sizes,  # type: ignore[arg-type]
    )


ARCHITECTURES: dict[str, Architecture] = {
    model.name: model
    for model in (
        _llama("llama2-7b", 32, 4096, (32, 32), 11008, vocab=32000, source=_LLAMA2),
        _llama("llama2-13b", 40, 5120, (40, 40), 13824, vocab=32000, source=_LLAMA2),
        _llama("llama2-70b", 80, 8192, (64, 8), 28672, vocab=32000, source=_LLAMA2),
        _llama("llama3.2-1b", 16, 2048, (32, 8), 8192, tied=True, source="Llama 3.2 model card"),
        _llama("llama3.2-3b", 28, 3072, (24, 8), 8192, tied=True, source="Llama 3.2 model card"),
        _llama("llama3-8b", 32, 4096, (32, 8), 14336, source=_LLAMA3),
        _llama("llama3-70b", 80, 8192, (64, 8), 28672, source=_LLAMA3),
        _llama("llama3-405b", 126, 16384, (128, 8), 53248, source=_LLAMA3),
        _llama(
            "mixtral-8x7b",
            32,
            4096,
            (32, 8),
            14336,
            vocab=32000,
            experts=ExpertSizes(8, 2, 14336),
            source="Jiang et al. 2024, Mixtral of experts, arXiv 2401.04088, table 1",
        ),
        _deepseek(
            "deepseek-v3",
            61,
            7168,
            18432,
            attention=AttentionSizes(
                128, 128, 192, 128, query_rank=1536, kv_rank=512, rope_width=64
            ),
            experts=ExpertSizes(256, 8, 2048, shared_width=2048),
            source="DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437, section 4.2; "
            "without the layer that predicts a second token",
        ),
        _deepseek(
            "deepseek-v2-lite",
            27,
            2048,
            10944,
            vocab=102400,
            num_dense_layers=1,
            attention=AttentionSizes(16, 16, 192, 128, kv_rank=512, rope_width=64),
            experts=ExpertSizes(64, 6, 1408, shared_width=2816),
            source="DeepSeek-AI 2024, DeepSeek-V2, arXiv 2405.04434, appendix B",
        ),
        _llama(
            "mistral-7b",
            32,
            4096,
            (32, 8),
            14336,
            vocab=32000,
            window=4096,
            num_windowed=32,
            source="Jiang et al. 2023, Mistral 7B, arXiv 2310.06825, table 1",
        ),
        _qwen3("qwen3-0.6b", 28, 1024, (16, 8), 3072, tied=True),
        _qwen3("qwen3-1.7b", 28, 2048, (16, 8), 6144, tied=True),
        _qwen3("qwen3-4b", 36, 2560, (32, 8), 9728, tied=True),
        _qwen3("qwen3-8b", 36, 4096, (32, 8), 12288),
        _qwen3("qwen3-14b", 40, 5120, (40, 8), 17408),
        _qwen3("qwen3-32b", 64, 5120, (64, 8), 25600),
        _qwen3("qwen3-30b-a3b", 48, 2048, (32, 4), 6144, ExpertSizes(128, 8, 768)),
        _qwen3("qwen3-235b-a22b", 94, 4096, (64, 4), 12288, ExpertSizes(128, 8, 1536)),
        _gpt_oss("gpt-oss-20b", 24, 32),
        _gpt_oss("gpt-oss-120b", 36, 128),
        _gemma3("gemma3-1b", 26, 1152, (4, 1, 256), 6912, vocab=262144, window=512),
        _gemma3("gemma3-4b", 34, 2560, (8, 4, 256), 10240),
        _gemma3("gemma3-12b", 48, 3840, (16, 8, 256), 15360),
        _gemma3("gemma3-27b", 62, 5376, (32, 16, 128), 21504),
        _gpt("gpt2", 12, 768, 12, 50257, 1024),
        _gpt("gpt2-medium", 24, 1024, 16, 50257, 1024),
        _gpt("gpt2-large", 36, 1280, 20, 50257, 1024),
        _gpt("gpt2-xl", 48, 1600, 25, 50257, 1024),
        _gpt("gpt-22b", 48, 6144, 64),
        _gpt("gpt3-175b", 96, 12288, 96),
        _gpt("mt-nlg-530b", 105, 20480, 128),
        _gpt("gpt-1t", 128, 25600, 160),
    )
}
"""Name -> model."""
