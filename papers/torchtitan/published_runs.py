"""torchtitan's published runs: their settings, reserved memory and throughput, with sources.

Settings that a source does not print are those of torchtitan's tree at that commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from schedsim.clusters import Libraries, get_architecture
from schedsim.workloads.architecture import Architecture


@dataclass(frozen=True)
class Run:
    """A published run: GiB reserved and in use, tokens per second and device, as far as printed."""

    name: str
    model: str | Architecture
    gib: float | None
    tokens: float | None
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    active_gib: float | None = None
    device: str = "h100-96gb"
    flash: int = 2
    memory_why: str = ""


_SELECTIVE = {"batch": 2, "recompute": "selective"}
# Runs of December 2024 and spring 2025 are of nightly builds before PyTorch 2.7.
_CODE = {"compiled": True, "torch": "2.6"}
_COMPILED = _SELECTIVE | _CODE
_EAGER = {**_SELECTIVE, "torch": "2.6"}
_LONG = {"recompute": "full", "float8": True, **_CODE}
# Tables 5 and 6 say so.
_3D = _LONG | {"tensor": 8, "pipeline": 8, "async_tensor": True}
# From June 2025 on: the loss is compiled with the layers, AdamW is fused.
_2025 = {"compiled_loss": True, "fused_optimizer": True}
# Up to June 2024 `model.py` returns `self.output(h).float()`, which the loop's `pred` holds, its
# RMSNorm converts its input to fp32, and FSDP2 is that of PyTorch 2.3 and 2.4.
_2024 = {"fsdp": 8, "wide_logits": True, "held_logits": True}
_EARLY = {"torch": "2.4"}
# Until May 2024 (pull request 268) the whole model is compiled, its last norm too.
_EARLY_CODE = {"compiled": True, "libraries": Libraries.of_torch("2.4", wide_norm=False)}
_LLAMA2 = {**_2024, "seq": 2048, "batch": 8}
# `run_train.sh` sets expandable segments; the benchmark of 2024 and Trainy's command do not go
# through it.
_SCRIPT = {"expandable": True}
_CHUNKED = {
    "fsdp": 256,
    "expert": 64,
    "seq": 4096,
    "batch": 8,
    "loss_chunks": 8,
    "fused_optimizer": True,
    **_SCRIPT,
}
# From August 2025 on: the embedding is gathered by itself, and norm and head together.
_LATE = {"separate_head": True, "fused_optimizer": True, **_SCRIPT}
# GraphTrainer's default backend then is `aot_eager`: nothing is fused but the loss, compiled.
_GRAPH = {**_2025, **_SCRIPT}
# That of May 2026 keeps what all products and attention make, as far as the backward reads it, or
# the inputs of layers alone; its loss is not compiled.
_TRACED = {**_LATE, "seq": 8192, "libraries": Libraries(traced=True)}
_TRACED_WHY = "GraphTrainer runs a graph that it has traced, and not FSDP2's."
# Eager layers with experts, of August 2025.
_EXPERTS = {"seq": 4096, "batch": 8, **_LATE}
_FLEX = {"libraries": Libraries.of_torch("2.9", routes="padded", flex_attention=True)}
# Without FlexAttention, heads whose values are narrower than their keys run in PyTorch's
# memory-efficient kernel alone (pull request 1610).
_PLAIN = {"libraries": Libraries.of_torch("2.9", routes="padded", efficient_attention=True)}
# Its routers send tokens where they like, and the rank with the most tokens is waited for: what a
# smaller model does that is as fresh (`benchmarks/router_spread.py`), its rate risen over as many
# steps, a mean over those between which the log counts tokens.
_FRESH_20 = {"uneven": 2.0}
_SAVED = "q+kv.down+kv+mixed+o+scores+arrived+returned+s.gate+s.up+s.down"
_V3 = {"fsdp": 64, "pipeline": 8, "expert": 32, "seq": 4096, "batch": 16}
_V3 |= {"num_micro_batches": 16, "schedule": "interleaved", "num_chunks": 2}
_V3 |= {"recompute": "full", "compiled": True, "compiled_loss": True, **_SCRIPT}
# Up to April 2026 scores and outputs of experts meet in a batched product; with DeepEP they do not.
_DROPPED = {"dropped_outputs": True, "flex_attention": True}
_BATCHED = {"libraries": Libraries.of_torch("2.10", routes="product", **_DROPPED)}
_DEEPEP = {"libraries": Libraries.of_torch("2.10", routes="deepep", **_DROPPED)}
# Of autumn 2025, runs on 8 GPUs are of another machine than those on more: their logs begin with
# "[rank0]" and not with "[trainer0|0]", and pull request 1881 has 7,380 tokens on 8 GPUs, 5,097 on
# 64. They are taken to be of an H100 as its data sheet has it, at 700 W and 3.35 TB/s.
_ONE_MACHINE = "h100-80gb"
# `parallelize.py` of then lays the norms of heads out on every rank alike (`NoParallel`).
_HEADS = {"libraries": Libraries(whole_heads=True)}
_CONTEXT_WHY = "What these runs wait for, beside attention and PyTorch's ring, is not found."

GROUPS: dict[str, list[Run]] = {
    "table 1, 8B on 8": [
        Run("eager", "llama3-8b", 82.4, 5762, {"fsdp": 8, **_EAGER}),
        Run("compile", "llama3-8b", 77.0, 6667, {"fsdp": 8, **_COMPILED}),
        Run("compile, float8", "llama3-8b", 76.8, 8532, {"fsdp": 8, "float8": True, **_COMPILED}),
    ],
    "table 2, 8B on 8, long sequences": [
        Run("32k", "llama3-8b", 83.9, 3890, {"fsdp": 8, "seq": 32768, **_LONG}),
        Run("64k, CP 2", "llama3-8b", 84.2, 2540, {"fsdp": 4, "context": 2, "seq": 65536, **_LONG}),
        Run(
            "128k, CP 4",
            "llama3-8b",
            84.0,
            1071,
            {"fsdp": 2, "context": 4, "seq": 131072, **_LONG},
            _CONTEXT_WHY,
        ),
        Run(
            "256k, CP 8",
            "llama3-8b",
            84.5,
            548,
            {"context": 8, "seq": 262144, **_LONG},
            _CONTEXT_WHY,
        ),
    ],
    "table 3, 8B on 128": [
        Run("eager", "llama3-8b", 67.0, 5605, {"fsdp": 128, **_EAGER}),
        Run("compile", "llama3-8b", 62.0, 6514, {"fsdp": 128, **_COMPILED}),
        Run("compile, float8", "llama3-8b", 61.8, 8380, {"fsdp": 128, "float8": True, **_COMPILED}),
    ],
    "table 4, 70B on 256": [
        Run("2D", "llama3-70b", 71.9, 829, {"fsdp": 32, "tensor": 8, "batch": 16, **_LONG}),
        Run(
            "2D, asynchronous TP",
            "llama3-70b",
            67.6,
            876,
            {"fsdp": 32, "tensor": 8, "batch": 16, "async_tensor": True, **_LONG},
            "What asynchronous tensor parallelism hides of its messages is not modelled.",
        ),
    ],
    "table 5, 405B on 512": [
        Run("1F1B", "llama3-405b", 82.5, 100, {"fsdp": 8, "batch": 32, **_3D}),
        Run(
            "interleaved",
            "llama3-405b",
            72.7,
            128,
            {"fsdp": 8, "batch": 32, "schedule": "interleaved", "num_chunks": 2, **_3D},
        ),
    ],
    "table 6, 405B on 512, long sequences": [
        Run("32k", "llama3-405b", 75.3, 76, {"fsdp": 8, "seq": 32768, "batch": 8, **_3D}),
        Run(
            "64k, CP 2",
            "llama3-405b",
            75.9,
            47,
            {"fsdp": 4, "context": 2, "seq": 65536, "batch": 8, **_3D},
        ),
        Run(
            "128k, CP 4",
            "llama3-405b",
            77.1,
            31,
            {"fsdp": 2, "context": 4, "seq": 131072, "batch": 8, **_3D},
        ),
        Run(
            "256k, CP 8",
            "llama3-405b",
            84.9,
            16,
            {"context": 8, "seq": 262144, "batch": 8, **_3D},
            _CONTEXT_WHY,
        ),
    ],
    "asynchronous TP, June 2025": [
        Run(
            "70B on 256, bf16",
            "llama3-70b",
            None,
            597.3,
            {"fsdp": 32, "tensor": 8, "batch": 16, "recompute": "full", **_CODE, **_2025},
        ),
        Run(
            "8B on 64, bf16",
            "llama3-8b",
            None,
            4378,
            {"fsdp": 8, "tensor": 8, **_COMPILED, "batch": 12, **_2025},
        ),
        Run(
            "8B on 64, float8",
            "llama3-8b",
            None,
            5078.1,
            {"fsdp": 8, "tensor": 8, "float8": True, **_COMPILED, "batch": 12, **_2025},
        ),
    ],
    "Trainy, 8B, float8, H200": [
        Run("32 GPUs", "llama3-8b", 47.96, None, {"fsdp": 32, **_COMPILED, **_2025}),
        Run("64 GPUs", "llama3-8b", 46.97, None, {"fsdp": 64, **_COMPILED, **_2025}),
    ],
    "pull request 1690, Qwen3-32B": [
        Run(
            name,
            "qwen3-32b",
            gib,
            tokens,
            {"seq": 4096, "recompute": "full", **_LATE, **options},
            device=_ONE_MACHINE if options["fsdp"] * options.get("tensor", 1) == 8 else "h100-96gb",
        )
        for name, gib, tokens, options in (
            (
                "FSDP 8, compile",
                81.85,
                1874,
                {"fsdp": 8, "batch": 2, "compiled": True, "compiled_loss": True},
            ),
            ("FSDP 8, batch 1", 81.47, 1444, {"fsdp": 8}),
            ("FSDP 8, batch 2", 89.33, 1614, {"fsdp": 8, "batch": 2}),
            ("FSDP 16, batch 4", 78.48, 1518, {"fsdp": 16, "batch": 4}),
            (
                "FSDP 8, TP 4, batch 16",
                70.20,
                1139,
                {"fsdp": 8, "tensor": 4, "batch": 16, **_HEADS},
            ),
            ("FSDP 4, TP 8, batch 16", 43.45, 876, {"fsdp": 4, "tensor": 8, "batch": 16, **_HEADS}),
            ("FSDP 8, TP 8, batch 32", 63.27, 873, {"fsdp": 8, "tensor": 8, "batch": 32, **_HEADS}),
            ("FSDP 4, TP 8, batch 32", 70.79, 883, {"fsdp": 4, "tensor": 8, "batch": 32, **_HEADS}),
        )
    ],
    # The loss is cut into 8 chunks by default then (pull request 4514 says so).
    "pull request 4153, DeepSeek-V3 on 256": [
        Run(
            f"keeping {what}",
            "deepseek-v3",
            gib,
            None,
            {"recompute": f"keep={names}", **_CHUNKED, "libraries": Libraries(traced=True)},
        )
        for what, names, gib in (
            ("the gate", "scores", 107.971),
            ("gate and wo", "scores+o", 141.529),
            ("gate, wo and wkv_a", "scores+o+kv.down", 143.717),
        )
    ],
    "pull request 996, 8B on 8": [
        Run(
            "one loss",
            "llama3-8b",
            49.58,
            5957,
            {"fsdp": 8, **_EAGER, "batch": 1, **_SCRIPT},
        ),
        Run(
            "loss in 8 chunks",
            "llama3-8b",
            42.26,
            None,
            {"fsdp": 8, **_EAGER, "batch": 1, "loss_chunks": 8, **_SCRIPT},
        ),
    ],
    "pull request 165, Llama 2 7B on 8": [
        # Shares of 95.0396 GiB where GiB are not printed; the middle of a range of tokens.
        Run(
            "full, eager",
            "llama2-7b",
            0.3264 * 95.0396,
            6200,
            {**_LLAMA2, **_EARLY, "recompute": "full"},
            active_gib=0.2392 * 95.0396,
        ),
        Run(
            "full, compile",
            "llama2-7b",
            28.90,
            7350,
            {**_LLAMA2, "recompute": "full", **_EARLY_CODE},
        ),
        Run(
            "selective, eager",
            "llama2-7b",
            0.6251 * 95.0396,
            6700,
            {**_LLAMA2, **_EARLY, "recompute": "selective"},
            active_gib=0.5213 * 95.0396,
        ),
        Run(
            "selective, compile",
            "llama2-7b",
            53.83,
            8250,
            {**_LLAMA2, "recompute": "selective", **_EARLY_CODE},
        ),
        Run(
            "selective, compile, batch 16",
            "llama2-7b",
            88.23,
            8600,
            {**_LLAMA2, "batch": 16, "recompute": "selective", **_EARLY_CODE},
        ),
        Run(
            "nothing recomputed, compile",
            "llama2-7b",
            90.28,
            9200,
            {**_LLAMA2, **_EARLY_CODE},
        ),
    ],
    "pull request 355, 8B on 8 A100": [
        Run(
            "AdamW of foreach",
            "llama3-8b",
            59.48,
            2627,
            {**_2024, **_EARLY, "recompute": "selective"},
            device="a100-80gb",
        ),
        Run(
            "AdamW fused",
            "llama3-8b",
            59.48,
            2718,
            {**_2024, **_EARLY, "recompute": "selective", "fused_optimizer": True},
            device="a100-80gb",
        ),
    ],
    "pull request 382, 8B on 8": [
        Run("compile", "llama3-8b", 69.04, 6397, {"fsdp": 8, "fused_optimizer": True, **_COMPILED}),
    ],
    "pull request 808, 8B on 8": [
        Run("compile", "llama3-8b", 47.65, 5760, {"fsdp": 8, **_COMPILED, "batch": 1, **_SCRIPT}),
        Run(
            "compile, float8",
            "llama3-8b",
            47.32,
            7186,
            {"fsdp": 8, "float8": True, **_COMPILED, "batch": 1, **_SCRIPT},
        ),
    ],
    "pull request 822, 8B on 8": [
        Run("default", "llama3-8b", 49.59, 5605, {"fsdp": 8, **_EAGER, "batch": 1, **_SCRIPT}),
        Run(
            "gathered once",
            "llama3-8b",
            62.18,
            5763,
            {"fsdp": 8, **_EAGER, "batch": 1, "zero_stage": 2, **_SCRIPT},
        ),
    ],
    "pull request 1881, 8B, FSDP2": [
        Run(
            "8 GPUs",
            "llama3-8b",
            47.82,
            7380,
            {"fsdp": 8, "recompute": "selective", **_LATE},
            device=_ONE_MACHINE,
        ),
        Run("64 GPUs", "llama3-8b", 31.41, 5097, {"fsdp": 64, "recompute": "selective", **_LATE}),
        Run(
            "8 GPUs, TP 2",
            "llama3-8b",
            35.33,
            5898,
            {"fsdp": 4, "tensor": 2, "recompute": "selective", **_LATE},
            device=_ONE_MACHINE,
        ),
    ],
    "pull request 820, 8B on 8": [
        Run(
            "compile, float8",
            "llama3-8b",
            47.77,
            6877,
            {"fsdp": 8, "float8": True, **_COMPILED, "batch": 1, **_SCRIPT},
        ),
    ],
    "pull request 985, 8B on 8": [
        Run("own norm", "llama3-8b", 49.58, 5233, {"fsdp": 8, **_EAGER, "batch": 1, **_SCRIPT}),
        Run(
            "PyTorch's norm", "llama3-8b", 49.66, 5173, {"fsdp": 8, **_EAGER, "batch": 1, **_SCRIPT}
        ),
    ],
    "pull requests 1513, 1610 and 1616, DeepSeek 16B on 8": [
        # Its log says that the vocabulary has 129,280 words.
        Run(
            "FSDP 4, CP 2, full",
            replace(get_architecture("deepseek-v2-lite"), vocab=129280),
            71.08,
            6037,
            {"fsdp": 4, "context": 2, "recompute": "full", **_EXPERTS, **_PLAIN},
        ),
        Run(
            "EP 8, selective, FlexAttention",
            "deepseek-v2-lite",
            78.14,
            8667,
            {"fsdp": 8, "expert": 8, "recompute": "selective", "compiled_loss": True}
            | {**_EXPERTS, **_FLEX},
        ),
        Run(
            "EP 8, selective",
            "deepseek-v2-lite",
            78.14,
            6721,
            {"fsdp": 8, "expert": 8, "recompute": "selective", "compiled_loss": True}
            | {**_EXPERTS, **_PLAIN},
        ),
        Run(
            "FSDP 2, PP 4, full, FlexAttention",
            "deepseek-v2-lite",
            67.11,
            5048,
            {"fsdp": 2, "pipeline": 4, "schedule": "interleaved", "num_chunks": 2}
            | {"num_micro_batches": 8, "recompute": "full", "compiled_loss": True}
            | {**{k: v for k, v in _EXPERTS.items() if k != "separate_head"}, **_FLEX},
        ),
    ],
    "pull request 2107, DeepSeek-V3 on 512": [
        Run(
            "PP 8, EP 32",
            "deepseek-v3",
            60.18,
            346,
            {**_V3, **_BATCHED},
            device="h100-80gb",
        ),
        Run(
            "PP 8, EP 32, DeepEP",
            "deepseek-v3",
            56.75,
            579,
            {**_V3, **_DEEPEP, "dispatcher": "deepep"},
            device="h100-80gb",
        ),
    ],
    "pull request 3429, GraphTrainer": [
        Run(
            f"8B, {name}",
            "llama3-8b",
            gib,
            tokens,
            {**degrees, "recompute": recompute, **_TRACED},
            _TRACED_WHY,
            device=_ONE_MACHINE,
        )
        for name, gib, tokens, degrees, recompute in (
            ("FSDP 8, default", 52.44, 7890, {"fsdp": 8}, "keep=q+k+v+mixed+o+gate+up"),
            ("FSDP 8, full", 32.07, 7006, {"fsdp": 8}, "full"),
            (
                "FSDP 4, TP 2, default",
                30.92,
                6607,
                {"fsdp": 4, "tensor": 2},
                "keep=q+k+v+mixed+o.part+gate+up",
            ),
            ("FSDP 4, TP 2, full", 20.70, 5933, {"fsdp": 4, "tensor": 2}, "full"),
        )
    ]
    + [
        Run(
            f"DeepSeek 16B, FSDP 8, EP 8, {name}",
            "deepseek-v2-lite",
            gib,
            tokens,
            {"fsdp": 8, "expert": 8, "batch": 4, "recompute": recompute, **_LATE, "seq": 4096}
            | {"libraries": Libraries(traced=True, flex_attention=True), **_FRESH_20},
            device=_ONE_MACHINE,
        )
        for name, gib, tokens, recompute in (
            # All but products of grouped experts (`_get_save_ops`), exchanged tokens too.
            ("default", 84.78, 8325, f"keep={_SAVED}"),
            ("full", 52.02, 7444, "full"),
        )
    ],
    "pull request 3914, 8B on 4 GB200": [
        Run(
            "bf16",
            "llama3-8b",
            174.49,
            None,
            {"fsdp": 4, "seq": 2048, "batch": 32, "recompute": "selective", "torch": "2.14"}
            | {"loss_chunks": 8, "chunked_head": True, **_LATE},
        ),
    ],
    "pull request 2570, 8B, FSDP 4, TP 2": [
        Run("nothing recomputed", "llama3-8b", 49.65, None, {"fsdp": 4, "tensor": 2, **_GRAPH}),
        Run(
            "selective",
            "llama3-8b",
            28.54,
            None,
            {"fsdp": 4, "tensor": 2, "recompute": "selective", **_GRAPH},
        ),
    ],
}
