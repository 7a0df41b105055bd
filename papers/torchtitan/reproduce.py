"""torchtitan's published runs: reserved memory and throughput of whole clusters, predicted."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, load_runs, main, published, taken_together

import schedsim

_RUNS = load_runs(Path(__file__).parent)
GROUPS = _RUNS.GROUPS
SOURCE = Source(
    title="torchtitan's benchmarks and pull requests, 2024 to 2026",
    what=f"memory and tokens per second of {sum(map(len, GROUPS.values()))} runs on 8 to 512 GPUs, "
    "predicted",
)
# How far a prediction may be from a run: of memory 12 %, of time 15 %.
MEMORY, TIME = 0.12, 0.15
# Pairs of runs that differ by less than this have no order to predict.
ORDER = 0.02


@cache
def predicted(group: str, index: int) -> Any:
    """What the model says of a run: one efficiency of the device, none of the run."""
    run = GROUPS[group][index]
    return schedsim.cluster(run.model, device=run.device, flash=run.flash, **run.options)


def rows() -> Iterator[tuple[str, Any, Any]]:
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
            what = f"{group}: {run.name}, reserved"
            yield published(
                what=what, claimed=run.gib, ours=ours, share=MEMORY, unit="GiB", why=run.memory_why
            )
        if run.active_gib is not None:
            ours, what = found.peak_bytes / 2**30, f"{group}: {run.name}, in use"
            yield published(what=what, claimed=run.active_gib, ours=ours, share=MEMORY, unit="GiB")
        if run.tokens is not None:
            ours = found.tokens_per_device_s
            time.append(abs(run.tokens / ours - 1))
            what = f"{group}: {run.name}, tokens per second and device"
            yield published(what=what, claimed=run.tokens, ours=ours, share=TIME, why=run.why)
    signs = [(a > 0) == (b > 0) for _, a, b in orders()]
    runs, steps, pairs = f"{len(memory)} runs", f"{len(time)} runs", f"{len(signs)} pairs"
    right = sum(signs) / len(signs)
    yield from taken_together(
        (
            (f"{runs}: median error of reserved memory", 5, statistics.median(memory)),
            (f"{runs}: worst error of reserved memory", 12, max(memory)),
            (f"{steps}: median error of time", 15, statistics.median(time)),
            (f"{steps}: share within 15 % of time", 100, _share(time)),
            (f"{pairs}: share of differences of memory with the right sign", 100, right),
        )
    )


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
