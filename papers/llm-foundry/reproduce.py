"""llm-foundry's throughput of MPT models on 8 to 512 GPUs, predicted."""

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
TABLES = (_RUNS.RUNS, _RUNS.OTHERS)
SOURCE = Source(
    title="llm-foundry's training benchmarks, 2023 and 2024",
    what=f"tokens per second of {sum(len(runs) for one in TABLES for runs in one.values())} runs "
    "of MPT 1B to 70B on 8 to 512 A100 and H100",
)
TIME = 0.15
CAPACITY = 79.1 * 2**30
"""Bytes of both devices as PyTorch counts them (torchtitan, pull requests 887 and 2107)."""


@cache
def predicted(table: int, device: str, index: int) -> Any:
    """What the model says of a row of one of `TABLES`."""
    run = TABLES[table][device][index]
    return schedsim.cluster(run.architecture(), device=device, flash=_RUNS.FLASH, **run.options())


def claims(instances: Instances) -> Iterator[Claim]:
    for model, count in _RUNS.PARAMETERS.items():
        ours = _RUNS.Run(model, 2048, 8, 1, 1, 0.0).architecture().num_parameters
        yield Claim(what=f"parameters of MPT {model}", claimed=count, ours=ours, seen="text")
    errors: list[list[float]] = [[], []]
    fit = []
    for table, rows in enumerate(TABLES):
        for device, runs in rows.items():
            for k, run in enumerate(runs):
                found = predicted(table, device, k)
                ours = found.tokens_per_device_s
                errors[table].append(abs(run.tokens / ours - 1))
                fit.append(found.reserved_bytes < CAPACITY)
                what = f"{device}: {run.name}, tokens per second and device"
                yield published(what=what, claimed=run.tokens, ours=ours, share=TIME)
    yield Claim(
        what="rows whose micro-batch is predicted to fit, of those that ran",
        claimed=len(fit),
        ours=sum(fit),
        seen="text",
    )
    for found in errors:
        share = sum(error <= TIME for error in found) / len(found)
        together = (
            ("median error of time", 15, statistics.median(found)),
            ("share within 15 % of time", 100, share),
        )
        yield from taken_together((f"{len(found)} runs: {what}", *its) for what, *its in together)


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for table, rows in enumerate(TABLES):
        for device, runs in rows.items():
            published = [run.tokens for run in runs]
            ours = [predicted(table, device, k).tokens_per_device_s for k in range(len(runs))]
            label = f"{device}, {'predicted last' if table else 'others'}"
            axes.loglog(published, ours, "o", markersize=4, label=label)
    axes.plot([300, 60000], [300, 60000], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, tokens per second and GPU", ylabel="predicted")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
