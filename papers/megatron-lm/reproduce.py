"""Bytes in use and seconds of Megatron-LM's functional tests, predicted."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, load_runs, main, published, taken_together

import schedsim

_RUNS = load_runs(Path(__file__).parent)
SOURCE = Source(
    title="Megatron-LM's functional tests, 2026",
    what=f"bytes in use of {len(_RUNS.RUNS)} steps of GPT and Mixtral on 8 to 128 H100",
)
MEMORY, TIME = 0.12, 0.15


@cache
def predicted(index: int) -> Any:
    """What the model says of a test."""
    run = _RUNS.RUNS[index]
    return schedsim.cluster(run.model, device="h100-80gb", **run.options)


def _last_gib(index: int) -> float:
    """GiB in use at most on the last rank, which is the one that logs."""
    return predicted(index).ranks[-1].peak_bytes / 2**30


def claims(instances: Instances) -> Iterator[Claim]:
    errors = []
    for k, run in enumerate(_RUNS.RUNS):
        claimed = run.in_use_bytes / 2**30
        errors.append(abs(_last_gib(k) / claimed - 1))
        what = f"{run.name}: in use on the last rank"
        yield published(
            what=what,
            claimed=claimed,
            ours=_last_gib(k),
            share=MEMORY,
            unit="GiB",
            seen="code",
            why=run.why,
        )
        if run.seconds is not None:
            what = f"{run.name}: seconds of an iteration"
            yield published(
                what=what, claimed=run.seconds, ours=predicted(k).step_s, share=TIME, seen="code"
            )
    together = (("median", 5, statistics.median(errors)), ("worst", 12, max(errors)))
    yield from taken_together(
        (f"{len(errors)} tests: {what} error of memory", *its) for what, *its in together
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    published = [run.in_use_bytes / 2**30 for run in _RUNS.RUNS]
    axes.plot(published, [_last_gib(k) for k in range(len(published))], "o")
    axes.plot([20, 65], [20, 65], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="logged, GiB in use", ylabel="predicted, GiB")


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
