"""Megatron-Bridge's performance summary: pre-training on H100, settings and throughput.

Of ``docs/performance-summary-archive.md``: the rows of DGX H100 for which the table and the recipes
of then (``scripts/performance/configs``) agree, of the containers named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedsim.clusters import Libraries


@dataclass(frozen=True)
class Run:
    """A row: tokens per second and GPU."""

    name: str
    model: str
    options: dict[str, Any]
    tokens: float
    why: str = ""


FLASH = 3
"""Transformer Engine takes cuDNN's attention on Hopper, for its speed."""
_FUSED = {"compiled": True, "compiled_loss": True, "fused_optimizer": True}
_MEGATRON = {**_FUSED, "state": "megatron", "regather": True}
_8B = {"fsdp": 8, "seq": 8192, "batch": 16, "num_micro_batches": 16, "float8": True, **_FUSED}
_8B |= {"recompute": "full:5,none:27"}  # ``recompute_num_layers=5``
_8B |= {"reduce_bf16": True}  # ``grad_reduce_in_fp32 = False``
_LONG = {"seq": 8192, "batch": 64, "num_micro_batches": 64, "schedule": "interleaved"}
# The recipes of dense models send parts of sequences beside products (``tp_comm_overlap``); that of
# Qwen3 235B on H100 does not.
_PARTS = {"float8": True, "overlap_tensor": True}
_70B = {"fsdp": 2, "tensor": 4, "pipeline": 8, "num_chunks": 5, **_PARTS}
_405B = {"fsdp": 8, "tensor": 8, "pipeline": 8, "context": 2, "num_chunks": 8, **_PARTS}
_BIASES = (
    "Megatron adds biases expert by expert, and its products are small; what waits is not found."
)
_CASTS = (
    "Rows of each expert are cast by kernels of their own; what the step waits for is not found."
)
_HIDES = "Nearly all exchanges are beside computation here; 37 % of one run's were."
_QWEN = {"fsdp": 16, "expert": 16, "seq": 4096, "batch": 64, "num_micro_batches": 64, **_MEGATRON}
_UNFUSED = {"libraries": Libraries(routes="megatron")}
_HYBRID = {"dispatcher": "deepep", "libraries": Libraries(routes="hybridep")}


def _tokens(step_s: float) -> float:
    """Tokens per second and GPU of 1,024 sequences of 4,096 on 16 GPUs."""
    return 1024 * 4096 / 16 / step_s


RUNS = [
    Run("Llama 3 8B, 8 GPUs, 25.09", "llama3-8b", _8B, 14079),
    Run("Llama 3 8B, 8 GPUs, 25.11", "llama3-8b", _8B, 14451),
    Run("Llama 3 70B, 64 GPUs, 25.09", "llama3-70b", {**_70B, **_LONG, **_MEGATRON}, 1619),
    Run("Llama 3 70B, 64 GPUs, 25.11", "llama3-70b", {**_70B, **_LONG, **_MEGATRON}, 1602),
    Run("Llama 3.1 405B, 1,024 GPUs, 25.09", "llama3-405b", {**_405B, **_LONG, **_MEGATRON}, 302),
    Run("Llama 3.1 405B, 1,024 GPUs, 25.11", "llama3-405b", {**_405B, **_LONG, **_MEGATRON}, 292),
    Run(
        "gpt-oss 120B, bf16, 64 GPUs, 26.04",
        "gpt-oss-120b",
        {"fsdp": 16, "pipeline": 4, "expert": 8, "seq": 4096}
        | {"batch": 80, "num_micro_batches": 80, **_MEGATRON},
        5810,
        _BIASES,
    ),
    Run(
        "Qwen3 30B-A3B, 16 GPUs, PP 2, 26.02.01",
        "qwen3-30b-a3b",
        {"fsdp": 8, "expert": 8, "pipeline": 2, "schedule": "interleaved", "num_chunks": 12}
        | {"seq": 4096, "batch": 128, "num_micro_batches": 128, "hidden_exchange": True}
        | {"float8": True, **_MEGATRON},
        9058,
        _CASTS,
    ),
    Run(
        "Qwen3 30B-A3B, 16 GPUs, 26.04",
        "qwen3-30b-a3b",
        {**_QWEN, "float8": True, "dispatcher": "deepep"},
        8901,
        _CASTS,
    ),
    Run(
        "Qwen3 235B-A22B, 256 GPUs, 25.11",
        "qwen3-235b-a22b",
        {"fsdp": 16, "tensor": 2, "pipeline": 8, "expert": 32, "whole_experts": True, "seq": 4096}
        | {"batch": 128, "num_micro_batches": 128, "schedule": "interleaved", "num_chunks": 4}
        | {"float8": True, "hidden_exchange": True, **_MEGATRON},
        1575,
    ),
    # Of skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md: in 16 bits, seconds of a step.
    Run(
        "Qwen3 30B-A3B, bf16, all-to-all",
        "qwen3-30b-a3b",
        {**_QWEN, **_UNFUSED},
        _tokens(41.25),
    ),
    Run(
        "Qwen3 30B-A3B, bf16, all-to-all, hidden",
        "qwen3-30b-a3b",
        {**_QWEN, **_UNFUSED, "hidden_exchange": True},
        _tokens(31.31),
        _HIDES,
    ),
    Run(
        "Qwen3 30B-A3B, bf16, HybridEP",
        "qwen3-30b-a3b",
        {**_QWEN, **_HYBRID},
        _tokens(24.7138),
        "Ranks wait for one another before they exchange (3.1 of its 24.7 s are metadata).",
    ),
    Run(
        "Qwen3 30B-A3B, bf16, HybridEP, hidden",
        "qwen3-30b-a3b",
        {**_QWEN, **_HYBRID, "hidden_exchange": True},
        _tokens(20.992),
        _HIDES,
    ),
]
