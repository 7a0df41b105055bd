"""Megatron-Bridge's throughput on H100, predicted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, load_runs, main, published

import schedsim

_RUNS = load_runs(Path(__file__).parent)
SOURCE = Source(
    title="Megatron-Bridge's performance summaries, 2025 and 2026",
    what=f"tokens per second of {len(_RUNS.RUNS)} runs on 8 to 1,024 H100, six of them dense",
)
TIME = 0.15


@cache
def predicted(index: int) -> Any:
    """What the model says of a row."""
    run = _RUNS.RUNS[index]
    return schedsim.cluster(run.model, device="h100-80gb", flash=_RUNS.FLASH, **run.options)


def claims(instances: Instances) -> Iterator[Claim]:
    for k, run in enumerate(_RUNS.RUNS):
        what, ours = f"{run.name}: tokens per second and device", predicted(k).tokens_per_device_s
        yield published(what=what, claimed=run.tokens, ours=ours, share=TIME, why=run.why)


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    ours = [predicted(k).tokens_per_device_s for k in range(len(_RUNS.RUNS))]
    axes.loglog([run.tokens for run in _RUNS.RUNS], ours, "o")
    axes.plot([200, 20000], [200, 20000], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, tokens per second and GPU", ylabel="predicted")


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
