"""Megatron-LM's functional tests on H100: settings, bytes in use, seconds of an iteration.

Of ``tests/functional_tests/test_cases``, commit d98e8a64dd: ``model_config.yaml`` has arguments,
``golden_values_dev_dgx_h100.json`` what the last rank logged: ``mem-max-allocated-bytes`` and
``iteration-time``. Nodes of the tests called ``release`` are not printed: the number of their
data-parallel ranks is the one whose parameters, gradients and moments come nearest to
``mem-allocated-bytes``, which are in use between steps. The first of Mixtral was restarted often,
and logs another peak after each start: the median of its 4,538 lines is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from schedsim.clusters import Architecture, AttentionSizes, ExpertSizes, get_architecture


@dataclass(frozen=True)
class Run:
    """A test: model, options of `schedsim.cluster`, bytes in use at most, seconds if printed."""

    name: str
    model: Architecture
    options: dict[str, Any]
    in_use_bytes: int
    seconds: float | None = None
    why: str = ""


def _gpt_7b(vocab: int) -> Architecture:
    """Biases, learned positions and dropouts by default; the vocabulary is padded."""
    return Architecture(
        "gpt-7b",
        32,
        4096,
        vocab,
        4 * 4096,
        AttentionSizes(32, 8, 128, bias=True, output_bias=True),
        gated=False,
        positions=8192,
        plain_norm=True,
        dropout=True,
    )


_GPT_15B = Architecture(
    "gpt-15b", 32, 6144, 256000, 4 * 6144, AttentionSizes(48, 8, 128), gated=False
)
_MIXTRAL = get_architecture("mixtral-8x7b")
_MIXTRAL_22B = Architecture(
    "mixtral-8x22b",
    56,
    6144,
    32000,
    16384,
    AttentionSizes(48, 8, 128),
    experts=ExpertSizes(8, 2, 16384),
)
_MEGATRON = {"state": "megatron", "regather": True, "fused_optimizer": True}

RUNS = [
    Run(
        "gpt3_7b_tp1_pp4_memory_speed",
        _gpt_7b(131200),
        {"fsdp": 2, "pipeline": 4, "seq": 8192, "batch": 4, "num_micro_batches": 4}
        | {"schedule": "interleaved", "num_chunks": 8, **_MEGATRON},
        60720852992,
        1.1505,
    ),
    Run(
        "gpt3_7b_tp4_pp1_memory_speed",
        _gpt_7b(131584),
        {"fsdp": 2, "tensor": 4, "seq": 8192, "batch": 4, "num_micro_batches": 2}
        | {"whole_sequence": True, **_MEGATRON},
        57143791616,
        1.1152,
    ),
    Run(
        "gpt3_15b_8t_release",
        _GPT_15B,
        {"fsdp": 16, "tensor": 8, "seq": 4096, "batch": 24, "num_micro_batches": 6, **_MEGATRON},
        28160194560,
    ),
    Run(
        "mixtral_8x7b_alltoall_tp2pp4ep4_release",
        replace(_MIXTRAL, vocab=256000),  # --tokenizer-model nemotron_2_256k.model
        {"fsdp": 16, "tensor": 2, "pipeline": 4, "expert": 4, "seq": 4096}
        | {"batch": 64, "num_micro_batches": 64, **_MEGATRON},
        25444866048,
    ),
    Run(
        "mixtral_8x22b_tp2pp8ep8vpp1_release",
        _MIXTRAL_22B,
        {"fsdp": 8, "tensor": 2, "pipeline": 8, "expert": 8, "seq": 4096}
        | {"batch": 32, "num_micro_batches": 32, **_MEGATRON},
        28533706752,
    ),
    Run(
        "mixtral_8x7b_tp1pp4ep8vpp8_release",
        _MIXTRAL,
        {"fsdp": 8, "tensor": 2, "pipeline": 4, "expert": 8, "whole_experts": True, "seq": 4096}
        | {"batch": 32, "num_micro_batches": 32, "schedule": "interleaved", "num_chunks": 8}
        | _MEGATRON,
        35505844224,
    ),
]
