"""Every persistent way to recompute a stage, or a short chain, one by one."""

from __future__ import annotations

import itertools
from functools import cache

from schedsim import Chain, Schedule, simulate


@cache
def replays(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All persistent ways to run layers lo..hi-1 forward and backward from the input of lo."""
    if lo == hi:
        return ((),)
    found = [
        (f"F{lo}", *rest, f"B{lo}") for rest in (replays(lo + 1, hi) if lo + 1 < hi else ((),))
    ]
    for j in range(lo + 1, hi):
        forward = tuple(f"F{i}" for i in range(lo, j))
        for right, left in itertools.product(replays(j, hi), replays(lo, j)):
            found.append((*forward, *right, *left))
    return tuple(found)


@cache
def plans(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All backwards of a stage: layers kept, or segments dropped and run again, left to right."""
    if lo == hi:
        return ((),)
    found = [(*rest, f"B{lo}") for rest in plans(lo + 1, hi)]
    for j in range(lo + 1, hi + 1):
        found += [(*rest, *one) for rest in plans(j, hi) for one in replays(lo, j)]
    return tuple(found)


def schedules(chain: Chain) -> list[tuple[int, float, Schedule]]:
    """Every persistent schedule of a short chain with its peak and its time, as simulated."""
    num = chain.num_stages
    found = []
    for names in replays(0, num):
        runs = []
        for name in names:
            stage = int(name[1:])
            if name == f"B{num - 1}":
                runs.append(num)  # the loss
            runs.append(stage if name[0] == "F" else 2 * num - stage)
        schedule = Schedule(chain.op_names, runs)
        simulation = simulate(chain, schedule)
        found.append((simulation.peak_bytes, simulation.makespan_s, schedule))
    return found


def least_time_s(chain: Chain, budget_bytes: int) -> float:
    """The least time of all persistent schedules within the budget; infinite for none."""
    return min((t for peak, t, _ in schedules(chain) if peak <= budget_bytes), default=float("inf"))
