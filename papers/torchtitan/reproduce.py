"""torchtitan's published runs: reserved memory and throughput of whole clusters, predicted."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main

import schedsim

SOURCE = Source(
    title="torchtitan's benchmarks and pull requests, 2024 and 2025",
    what="reserved memory and tokens per second of 35 runs on 8 to 512 GPUs, predicted",
)
# How far a prediction may be from a run: of memory 12 %, of time 15 %.
MEMORY, TIME = 0.12, 0.15
# Pairs of runs that differ by less than this have no order to predict.
ORDER = 0.02
_TOGETHER = "The rows above taken together: what was hoped for, and what no source claims."
_TP_WHY = "A sixth of the time of eager tensor parallelism is not found."


@dataclass(frozen=True)
class Run:
    """A published run: reserved GiB and tokens per second and device, as far as printed."""

    name: str
    model: str
    gib: float | None
    tokens: float | None
    options: dict[str, Any] = field(default_factory=dict)
    why: str = ""


_SELECTIVE = {"batch": 2, "recompute": "selective"}
# Compiled code as PyTorch 2.6 writes it; 2.13 and later hand fewer blocks on.
_CODE = {"compiled": True, "handed_always": True}
_COMPILED = _SELECTIVE | _CODE
_LONG = {"recompute": "full", "float8": True, **_CODE}
# Tables 5 and 6 say so.
_3D = _LONG | {"tensor": 8, "pipeline": 8, "async_tensor": True, "held_messages": True}
# From June 2025 on: the loss is compiled with the layers, AdamW is fused.
_2025 = {"compiled_loss": True, "fused_optimizer": True}
# March 2024: `model.py` returns `self.output(h).float()`, which the loop's `pred` holds, and its
# RMSNorm converts its input to fp32.
_2024 = {"fsdp": 8, "wide_logits": True, "held_logits": True}
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
_CONTEXT_WHY = (
    "What PyTorch's attention over parts of a sequence takes beside its flops is not modelled."
)

GROUPS: dict[str, list[Run]] = {
    "table 1, 8B on 8": [
        Run("eager", "llama3-8b", 82.4, 5762, {"fsdp": 8, **_SELECTIVE}),
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
        Run("eager", "llama3-8b", 67.0, 5605, {"fsdp": 128, **_SELECTIVE}),
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
            "FSDP 8, compile",
            "qwen3-32b",
            81.85,
            1874,
            {
                "fsdp": 8,
                "seq": 4096,
                "batch": 2,
                "recompute": "full",
                "compiled": True,
                **_2025,
                **_SCRIPT,
            },
        ),
        Run(
            "FSDP 4, TP 8, batch 16",
            "qwen3-32b",
            43.45,
            876,
            {
                "fsdp": 4,
                "tensor": 8,
                "seq": 4096,
                "batch": 16,
                "recompute": "full",
                "fused_optimizer": True,
                **_SCRIPT,
            },
        ),
        Run(
            "FSDP 8, TP 8, batch 32",
            "qwen3-32b",
            63.27,
            873,
            {
                "fsdp": 8,
                "tensor": 8,
                "seq": 4096,
                "batch": 32,
                "recompute": "full",
                "fused_optimizer": True,
                **_SCRIPT,
            },
        ),
        Run(
            "FSDP 4, TP 8, batch 32",
            "qwen3-32b",
            70.79,
            883,
            {
                "fsdp": 4,
                "tensor": 8,
                "seq": 4096,
                "batch": 32,
                "recompute": "full",
                "fused_optimizer": True,
                **_SCRIPT,
            },
        ),
    ],
    # The loss is cut into 8 chunks by default then (pull request 4514 says so).
    "pull request 4153, DeepSeek-V3 on 256": [
        Run(f"keeping {what}", "deepseek-v3", gib, None, {"recompute": f"keep={names}", **_CHUNKED})
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
            {"fsdp": 8, "batch": 1, "recompute": "selective", **_SCRIPT},
        ),
        Run(
            "loss in 8 chunks",
            "llama3-8b",
            42.26,
            None,
            {"fsdp": 8, "batch": 1, "recompute": "selective", "loss_chunks": 8, **_SCRIPT},
        ),
    ],
    "pull request 165, Llama 2 7B on 8": [
        # Shares of 95.0396 GiB where GiB are not printed.
        Run(
            "full, eager",
            "llama2-7b",
            0.3264 * 95.0396,
            None,
            {**_2024, "seq": 2048, "batch": 8, "recompute": "full", "wide_norm": True},
        ),
        Run(
            "full, compile",
            "llama2-7b",
            28.90,
            None,
            {**_2024, "seq": 2048, "batch": 8, "recompute": "full", **_CODE},
        ),
        Run(
            "selective, eager",
            "llama2-7b",
            0.6251 * 95.0396,
            None,
            {**_2024, "seq": 2048, "batch": 8, "recompute": "selective", "wide_norm": True},
        ),
        Run(
            "selective, compile",
            "llama2-7b",
            53.83,
            None,
            {**_2024, "seq": 2048, "batch": 8, "recompute": "selective", **_CODE},
        ),
        Run(
            "selective, compile, batch 16",
            "llama2-7b",
            88.23,
            None,
            {**_2024, "seq": 2048, "batch": 16, "recompute": "selective", **_CODE},
        ),
        Run(
            "nothing recomputed, compile",
            "llama2-7b",
            90.28,
            None,
            {**_2024, "seq": 2048, "batch": 8, **_CODE},
        ),
    ],
}


@cache
def predicted(group: str, index: int) -> Any:
    """What the model says of a run: one efficiency of the device, none of the run."""
    run = GROUPS[group][index]
    return schedsim.cluster(run.model, device="h100-96gb", **run.options)


def rows() -> Iterator[tuple[str, Run, Any]]:
    """Every run with its prediction."""
    for group, runs in GROUPS.items():
        for k, run in enumerate(runs):
            yield group, run, predicted(group, k)


def orders() -> Iterator[tuple[str, float, float]]:
    """(pair, published difference, predicted one) of neighbours that differ in memory."""
    for group, runs in GROUPS.items():
        held = [
            (run.name, run.gib, predicted(group, k).reserved_bytes / 2**30)
            for k, run in enumerate(runs)
            if run.gib is not None
        ]
        for (one, a, b), (other, c, d) in pairwise(held):
            assert a is not None
            assert c is not None
            if abs(c / a - 1) > ORDER:
                yield f"{group}: {one} to {other}", c - a, d - b


def claims(instances: Instances) -> Iterator[Claim]:
    memory, time = [], []
    for group, run, found in rows():
        if run.gib is not None:
            ours = found.reserved_bytes / 2**30
            memory.append(abs(ours / run.gib - 1))
            yield Claim(
                what=f"{group}: {run.name}, reserved",
                claimed=round(run.gib, 2),
                ours=ours,
                unit="GiB",
                within=MEMORY * run.gib,
                seen="text",
            )
        if run.tokens is not None:
            ours = found.tokens_per_device_s
            time.append(abs(run.tokens / ours - 1))
            yield Claim(
                what=f"{group}: {run.name}, tokens per second and device",
                claimed=run.tokens,
                ours=ours,
                within=TIME * run.tokens,
                seen="text",
                why=(run.why or _why(run)) if abs(ours / run.tokens - 1) > TIME else "",
            )
    signs = [(a > 0) == (b > 0) for _, a, b in orders()]
    for what, claimed, ours, unit in (
        (f"{len(memory)} runs: median error of reserved memory", 5, statistics.median(memory), "%"),
        (f"{len(memory)} runs: worst error of reserved memory", 12, max(memory), "%"),
        (f"{len(time)} runs: median error of time", 15, statistics.median(time), "%"),
        (f"{len(time)} runs: share within 15 % of time", 100, _share(time), "%"),
        (f"{len(signs)} pairs: share of differences of memory with the right sign", 100,
         sum(signs) / len(signs), "%"),
    ):  # fmt: skip
        yield Claim(
            what=what,
            claimed=claimed,
            ours=100 * ours,
            unit=unit,
            relation="at least" if claimed == 100 else "at most",
            seen="formula",
            check=_TOGETHER,
        )


def _why(run: Run) -> str:
    eager = "tensor" in run.options and not run.options.get("compiled")
    return _TP_WHY if eager else "The efficiency that table 1 sets is too low for wider products."


def _share(errors: list[float]) -> float:
    return sum(error <= TIME for error in errors) / len(errors)


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for group in GROUPS:
        pairs = [
            (run.gib, predicted(group, k).reserved_bytes / 2**30)
            for k, run in enumerate(GROUPS[group])
            if run.gib is not None
        ]
        if pairs:
            axes.plot(*zip(*pairs, strict=True), "o", markersize=4, label=group)
    axes.plot([25, 95], [25, 95], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, GiB reserved", ylabel="predicted, GiB")
    axes.legend(fontsize=6)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
