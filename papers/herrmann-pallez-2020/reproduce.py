"""H-Revolve 2020: two levels of storage, copies in line with the steps or beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, unit_chain
from schedsim.algorithms.chains.revolve import num_forwards, revolve_schedule

from schedsim.api import try_plan
from schedsim.transfers import Link

SOURCE = Source(
    title="Herrmann & Pallez 2020, H-Revolve",
    what="memory and disk: the optimum by recurrence, against its code; copies beside compute",
)
BUNDLE = 10_000
# Steps, slots in memory, cost of a write and of a read -> cost by the successor of their code
# (checkpoint_schedules 1.0.4, HRevolve, ten slots on disk), one a step and one a backward.
PUBLISHED = {
    (20, 2, 0): 66, (20, 2, 2): 90, (20, 2, 5): 100,
    (20, 3, 0): 65, (20, 3, 2): 83, (20, 3, 5): 85,
    (50, 3, 0): 185, (50, 3, 2): 225, (50, 3, 5): 250,
}  # fmt: skip


@cache
def in_memory(num_slots: int, num_steps: int) -> np.ndarray:
    """Least forwards of the first 0, 1, ... steps with slots in memory alone, turns included."""
    counts = [num_forwards(num, num_slots) + num for num in range(1, num_steps + 1)]
    return np.array([0, *counts], dtype=float)


@cache
def from_disk(num_slots: int, num_steps: int, read_s: float) -> np.ndarray:
    """Least cost of the steps behind a state on disk that is read anew for each part of them."""
    memory = in_memory(num_slots, num_steps)
    least = memory.copy()
    for num in range(2, num_steps + 1):
        first = np.arange(1, num)
        # Run `first` steps from the state just read, reverse the rest, read it again.
        others = first + memory[num - first] + read_s + least[first]
        least[num] = min(memory[num], float(others.min()))
    return least


@cache
def with_disk(num_slots: int, num_steps: int, write_s: float, read_s: float) -> np.ndarray:
    """Least cost with as many states on disk as it takes, copies waited for; one a backward."""
    memory, disk = in_memory(num_slots, num_steps), from_disk(num_slots, num_steps, read_s)
    least = memory.copy()
    for num in range(2, num_steps + 1):
        first = np.arange(1, num)
        others = write_s + first + least[num - first] + read_s + disk[first]
        least[num] = min(memory[num], float(others.min()))
    return least + np.arange(num_steps + 1)


@cache
def beside(num: int, slots: int, copy_s: float) -> float:
    """Time of the offload planner, whose copies run beside the steps, one each way at a time."""
    chain = unit_chain(num, backward_s=1.0, saved_bytes=BUNDLE)
    # Room for one bundle, its input, two gradients and the slots; a state is a byte.
    plan = try_plan(
        chain,
        BUNDLE + 1 + 2 + slots,
        "offload",
        link=Link(1 / copy_s),
        max_moves=20_000,
        num_threads=1,
        time_limit_s=4,
    )
    assert plan.makespan_s is not None
    return plan.makespan_s


def claims(instances: Instances) -> Iterator[Claim]:
    for num, slots in ((20, 2), (100, 8)):
        runs = num_forward_runs(revolve_schedule(num, slots), unit_chain(num))
        yield Claim(
            what=f"one level: {num} steps, {slots} slots, forwards of revolve",
            claimed=num_forwards(num, slots) + num,
            ours=runs,
            seen="code",
        )
    for (num, slots, copy_s), cost in PUBLISHED.items():
        yield Claim(
            what=f"{num} steps, {slots} slots, disk at {copy_s} a copy: cost of its code",
            claimed=cost,
            ours=float(with_disk(slots, num, copy_s, copy_s)[num]),
            relation="equal" if copy_s else "at most",
            seen="code",
            why="" if copy_s else "Copies are free and our disk has no limit, theirs ten slots.",
        )
    raised = falls = 0
    grid = [(slots, copy_s) for slots in range(1, 6) for copy_s in (0.0, 0.5, 1.0, 2.0, 5.0, 20.0)]
    for slots, copy_s in grid:
        alone = in_memory(slots, 60) + np.arange(61)
        costs = with_disk(slots, 60, copy_s, copy_s)
        raised += int((costs > alone).sum())
        for more in (
            with_disk(slots, 60, copy_s + 1, copy_s),
            with_disk(slots, 60, copy_s, copy_s + 1),
        ):
            falls += int((more < costs).sum())
    yield Claim(
        what="lengths to 60, 1 to 5 slots, six prices: where a disk raises the cost",
        claimed=0,
        ours=raised,
        seen="formula",
    )
    yield Claim(
        what="the same: where a dearer write or read lowers the cost",
        claimed=0,
        ours=falls,
        seen="formula",
    )
    for num, slots, copy_s in ((20, 2, 2.0), (20, 2, 5.0), (20, 3, 5.0)):
        yield Claim(
            what=f"{num} steps, {slots} slots, copies of {copy_s:g} beside the steps: time",
            claimed=PUBLISHED[num, slots, int(copy_s)],
            ours=beside(num, slots, copy_s),
            relation="at most",
            seen="code",
            why="Theirs waits for each copy; ours lets it run beside the steps.",
        )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    prices = [0, 0.5, 1, 2, 3, 5, 8, 12, 20]
    for slots in (2, 3, 5):
        costs = [float(with_disk(slots, 50, price, price)[50]) for price in prices]
        axes.plot(prices, costs, "o-", label=f"{slots} slots and a disk")
    axes.set(xlabel="price of a copy, in steps", ylabel="cost of 50 steps, copies waited for")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
