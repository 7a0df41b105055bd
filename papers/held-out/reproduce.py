"""Published runs of many libraries, predicted before anybody looked at what comes out."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, load_runs, main, published, taken_together

from schedsim.clusters import Training, get_architecture, get_fabric, predict
from schedsim.clusters.facade import split_options, whole_degrees, with_libraries

_RUNS = load_runs(Path(__file__).parent)
GROUPS = _RUNS.GROUPS
SOURCE = Source(
    title="Held-out runs of seven libraries, 2022 to 2026",
    what=f"memory and tokens per second of {sum(map(len, GROUPS.values()))} runs on 4 to 1,024 "
    "GPUs, predicted before they were looked at",
)
MEMORY, TIME = 0.12, 0.15


@cache
def predicted(group: str, index: int) -> Any:
    """What the model says of a run."""
    run = GROUPS[group][index]
    model = get_architecture(run.model)
    degrees, settings = split_options(with_libraries(dict(run.options), model))
    fabric = get_fabric(run.device, flash=run.flash, network=run.network)
    return predict(model, whole_degrees(None, degrees), Training(**settings), fabric)


def claims(instances: Instances) -> Iterator[Claim]:
    memory, time = [], []
    for group, runs in GROUPS.items():
        for k, run in enumerate(runs):
            found, why = predicted(group, k), _RUNS.MISSES.get(run.name, "")
            if run.gib is not None:
                ours = found.reserved_bytes / 2**30
                memory.append(abs(ours / run.gib - 1))
                what = f"{group}: {run.name}, reserved"
                yield published(
                    what=what, claimed=run.gib, ours=ours, share=MEMORY, unit="GiB", why=why
                )
            if run.tokens is not None:
                ours = found.tokens_per_device_s
                time.append(abs(run.tokens / ours - 1))
                what = f"{group}: {run.name}, tokens per second and device"
                yield published(what=what, claimed=run.tokens, ours=ours, share=TIME, why=why)
    share = sum(error <= TIME for error in time) / len(time)
    yield from taken_together(
        (
            (f"{len(memory)} runs: median error of memory", 5, statistics.median(memory)),
            (f"{len(memory)} runs: worst error of memory", 12, max(memory)),
            (f"{len(time)} runs: median error of time", 15, statistics.median(time)),
            (f"{len(time)} runs: share within 15 % of time", 100, share),
        )
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    for group, runs in GROUPS.items():
        pairs = [
            (run.tokens, predicted(group, k).tokens_per_device_s)
            for k, run in enumerate(runs)
            if run.tokens is not None
        ]
        if pairs:
            axes.loglog(*zip(*pairs, strict=True), "o", markersize=4, label=group)
    axes.plot([60, 25000], [60, 25000], color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, tokens per second and GPU", ylabel="predicted")
    axes.legend(fontsize=6)


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
