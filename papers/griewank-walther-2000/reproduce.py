"""Griewank & Walther 2000: the number of forwards of binomial checkpointing, run by run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from math import comb
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import num_forward_runs, unit_chain
from schedsim.algorithms.chains.revolve import revolve_schedule

from schedsim import simulate

SOURCE = Source(
    title="Griewank & Walther 2000, Algorithm 799: revolve",
    what="t(n, s) as runs of replayed schedules, and its optimality by a recurrence",
    fast=True,
)

# (steps, slots): t(n, s), from r n - C(s + r, r - 1) as the published program computes it.
FORWARDS = {
    (10, 2): 20, (10, 3): 15, (20, 2): 65, (32, 5): 68, (50, 3): 180, (64, 8): 137,
    (100, 5): 316, (100, 10): 222, (100, 14): 184, (1000, 3): 12155, (1000, 5): 6284,
    (1000, 10): 3636, (1000, 20): 2747, (1000, 31): 2439, (1000, 44): 1954, (1000, 50): 1948,
    (1000, 100): 1898, (10000, 20): 37976,
}  # fmt: skip


@cache
def recurrence(num_steps: int, num_slots: int) -> np.ndarray:
    """Least plain forwards, ``[slots, steps]``: t(n, s) = min_m m + t(n - m, s - 1) + t(m, s)."""
    steps = np.arange(num_steps + 1)
    table = np.zeros((num_slots + 1, num_steps + 1), dtype=np.int64)
    table[1] = steps * (steps - 1) // 2
    for slots in range(2, num_slots + 1):
        for num in range(2, num_steps + 1):
            first = steps[1:num]
            table[slots, num] = (first + table[slots - 1, num - first] + table[slots, first]).min()
    return table


def claims(instances: Instances) -> Iterator[Claim]:
    for (num, slots), forwards in FORWARDS.items():
        runs = num_forward_runs(revolve_schedule(num, slots), unit_chain(num))
        yield Claim(
            what=f"t({num}, {slots}): plain forwards of the schedule",
            claimed=forwards,
            ours=runs - num,  # the forward that makes the tape of each step is not counted
            seen="code",
        )
    least = recurrence(100, 14)
    for num, slots in ((64, 8), (100, 5), (100, 14)):
        yield Claim(
            what=f"t({num}, {slots}) is the least of all ways to split",
            claimed=FORWARDS[num, slots],
            ours=float(least[slots, num]),
            seen="formula",
        )
    # A state of a byte, a tape of a thousand and the state it begins with: the rest is slots, and
    # the gradients at both ends of the step being reversed.
    chain = unit_chain(100, saved_bytes=1001)
    peak = simulate(chain, revolve_schedule(100, 10)).peak_bytes
    yield Claim(
        what="states held at once, n = 100, s = 10",
        claimed=10,
        ours=peak - 1002 - 2,
        relation="at most",
        seen="formula",
    )
    yield Claim(
        what="steps reversed with 3 slots and at most 17 repeats: C(20, 3)",
        claimed=comb(20, 3),
        ours=float(max(n for n in range(1000, 1300) if most_repeats(n, 3) <= 17)),
        seen="formula",
    )


def most_repeats(num_steps: int, num_slots: int) -> int:
    """How often the step run most is run plainly."""
    chain = unit_chain(num_steps)
    runs = revolve_schedule(num_steps, num_slots).bind(chain)
    return int(np.bincount(runs, minlength=num_steps)[:num_steps].max()) - 1


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    sizes = [10, 20, 50, 100, 200, 500, 1000]
    for slots in (2, 5, 10, 50):
        ratio = []
        for num in sizes:
            runs = num_forward_runs(revolve_schedule(num, slots), unit_chain(num))
            ratio.append((runs - num) / num)
        axes.semilogx(sizes, ratio, "o-", label=f"{slots} slots")
    axes.set(xlabel="steps n", ylabel="t(n, s) / n", ylim=(0, 12))
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
