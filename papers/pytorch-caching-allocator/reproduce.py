"""PyTorch's caching allocator: its documented sizes, and what plans leave unused in segments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import store_all

import schedsim
from schedsim import Chain, simulate
from schedsim.allocators import CachingOptions, Requests, allocate, play
from schedsim.workloads import WorkloadOptions, build_workload

DOCUMENTED = "What the documentation says, built in and asked again."

SOURCE = Source(
    title="PyTorch's caching allocator of CUDA memory",
    what="documented sizes of blocks and segments; what a batch that grows takes",
)
KIB, MIB = 2**10, 2**20


def asked(steps: list[int]) -> Requests:
    """Sizes to ask for, in order; ``~i`` gives the i-th back."""
    sizes = [step for step in steps if step >= 0]
    numbers = iter(range(len(sizes)))
    items = np.array([next(numbers) if step >= 0 else step for step in steps], dtype=np.int64)
    return Requests(
        items=items,
        events=np.arange(items.size),
        item_bytes=np.array(sizes, dtype=np.int64),
        item_stream=np.zeros(len(sizes), dtype=np.int64),
        item_names=tuple(f"t{i}" for i in range(len(sizes))),
        num_events=items.size,
    )


def block(size: int, divisions: int = 0) -> int:
    """Bytes of the block that a request becomes."""
    options = CachingOptions(roundup_power2_divisions=divisions)
    return int(options.block_bytes(np.array([size]))[0])


def reserved(steps: list[int], *, expandable: bool = False) -> int:
    """Bytes taken from the driver at the most."""
    return play(asked(steps), expandable_segments=expandable).peak_reserved_bytes


@cache
def unused(percent: int, *, expandable: bool) -> float:
    """Percent that an optimal plan of gpt2-xl reserves over what it requests."""
    chain = build_workload(WorkloadOptions(preset="gpt2-xl", batch=8)).workload
    assert isinstance(chain, Chain)
    plan = schedsim.plan(chain, store_all(chain).peak_bytes * percent // 100)
    assert plan.schedule is not None
    simulation = simulate(chain, plan.schedule)
    told = allocate(simulation, expandable_segments=expandable)
    return 100 * (told.peak_reserved_bytes / simulation.peak_bytes - 1)


def claims(instances: Instances) -> Iterator[Claim]:
    for size, rounded in ((1, 512), (512, 512), (513, 1024)):
        yield Claim(
            what=f"a request of {size} bytes is rounded to",
            claimed=rounded,
            ours=block(size),
            unit="B",
            seen="text",
            check=DOCUMENTED,
        )
    yield Claim(
        what="1200 with 4 divisions of a power of two is rounded to (in KiB here)",
        claimed=1280,
        ours=block(1200 * KIB, 4) / KIB,
        seen="text",
        check=DOCUMENTED,
    )
    for size, segment in (
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (9 * MIB, 20),
        (10 * MIB, 10),
        (10 * MIB + 1, 12),
        (33 * MIB, 34),
    ):
        yield Claim(
            what=f"a first request of {size:,} bytes takes a segment of",
            claimed=segment,
            ours=reserved([size]) / MIB,
            unit="MiB",
            seen="text",
            check=DOCUMENTED,
        )
    grown = [30 * MIB, ~0, 33 * MIB]
    yield Claim(
        what="a batch that grows: 30 MiB given back, then 33 MiB asked for, two segments",
        claimed=30 + 34,
        ours=reserved(grown) / MIB,
        unit="MiB",
        seen="text",
        check=DOCUMENTED,
    )
    yield Claim(
        what="the same with expandable segments: one, grown by pages of 20 MiB",
        claimed=40,
        ours=reserved(grown, expandable=True) / MIB,
        unit="MiB",
        seen="text",
        check=DOCUMENTED,
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    budgets = [100, 70, 50, 30, 20]
    for expandable in (False, True):
        values = [unused(percent, expandable=expandable) for percent in budgets]
        label = "expandable segments" if expandable else "segments"
        axes.plot(budgets, values, "o-", label=label)
    axes.set(xlabel="budget, % of the store-all peak, gpt2-xl", ylabel="reserved over requested, %")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
