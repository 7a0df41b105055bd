"""Revolve: binomial checkpointing, optimal in the number of forwards for equal stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain
from schedsim.errors import PlannerLimitError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

MOST_RUNS = 4_000_000
"""Most forwards of a schedule; on long chains, numbers of slots that need more are not tried."""


@timed()
def revolve(chain: Chain, budget_bytes: int, *, num_slots: int | None = None) -> Plan:
    """The binomial plan with as many slots as fit; every backward follows its own forward.

    Parameters
    ----------
    num_slots
        States held at once, the chain's input included. By default the most whose simulated peak
        is within the budget.

    Notes
    -----
    The number of forwards is least for the number of slots (Griewank & Walther 2000, theorem 1).
    Nothing is claimed about time and bytes of an uneven chain: those are simulated. O(L log L) for
    each number of slots tried; about log2(L) are tried.

    References
    ----------
    Griewank, Walther, "Algorithm 799: revolve", ACM TOMS 26(1):19-45, 2000.

    Examples
    --------
    >>> from schedsim import Chain
    >>> ones = [1] * 10
    >>> chain = Chain.from_arrays("ten", 1, forward_s=ones, backward_s=ones, output_bytes=ones,
    ...                           saved_bytes=ones)
    >>> revolve(chain, 100, num_slots=3).makespan_s  # t(10, 3) + 10 forwards, 10 backwards
    35.0
    """
    num = chain.num_stages
    if num_slots is not None and num_slots < 1:
        raise ValueError(f"num_slots is {num_slots}, but the chain's input takes one")
    if num_slots is not None and not _is_short(num, num_slots):
        raise PlannerLimitError(
            f"{num} stages in {num_slots} slots take more than {MOST_RUNS:,} forwards",
            hint="give more slots",
        )

    @cache
    def replay(slots: int) -> Simulation:
        return simulate(chain, Schedule(chain.op_names, _runs(num, slots)))

    least = min((replay(s) for s in _few_slots(num, num_slots)), key=lambda r: r.peak_bytes)
    chosen = num_slots or _most_that_fit(lambda s: replay(s).peak_bytes <= budget_bytes, num)
    fits = chosen is not None and replay(chosen).peak_bytes <= budget_bytes
    return make_plan(
        chain,
        budget_bytes,
        replay(chosen).schedule if fits and chosen is not None else None,
        planner="revolve",
        options={"num_slots": chosen} if fits else {},
        least=LeastBudget(least.peak_bytes, least.peak_op),
    )


def num_forwards(num_steps: int, num_slots: int) -> int:
    """Least number of plain forward steps to reverse `num_steps`, t(n, s); exact, O(r).

    The saving forward of each step (the turn) is not counted; with it, add `num_steps`.
    ``t(n, s) = r n - C(s + r, r - 1)`` with the least r for which ``C(s + r, s) >= n``.

    Parameters
    ----------
    num_steps, num_slots
        At least 1 each; slots hold states, the initial one included.

    Examples
    --------
    >>> num_forwards(10, 3), num_forwards(1000, 50), num_forwards(7, 1)
    (15, 1948, 21)
    """
    if num_steps < 1 or num_slots < 1:
        raise ValueError(f"t({num_steps}, {num_slots}) is not defined: both must be at least 1")
    if num_steps == 1:
        return 0
    repeats = num_repeats(num_steps, num_slots)
    return repeats * num_steps - comb(num_slots + repeats, repeats - 1)


def num_repeats(num_steps: int, num_slots: int) -> int:
    """Least r with C(s + r, s) >= n: no step runs plainly more often than r times.

    Examples
    --------
    >>> num_repeats(10, 3), num_repeats(1000, 3)
    (2, 17)
    """
    repeats, reach = 0, 1
    while reach < num_steps:
        repeats += 1
        reach = reach * (num_slots + repeats) // repeats
    return repeats


def revolve_schedule(num_stages: int, num_slots: int) -> Schedule:
    """The binomial schedule for a chain of `num_stages` with `num_slots` slots.

    Forwards are ``t(n, s) + n`` in number. O(runs).

    Examples
    --------
    >>> revolve_schedule(3, 2)
    Schedule(F0 F1 F2 loss B2 F1 B1 F0 B0)
    """
    names = [f"F{i}" for i in range(num_stages)]
    names += ["loss", *(f"B{i}" for i in range(num_stages - 1, -1, -1))]
    return Schedule(names, _runs(num_stages, num_slots))


def _runs(num: int, num_slots: int) -> NDArray[np.int32]:
    """Op indices of the schedule: F_i is i, the loss is L, B_i is 2 L - i."""
    steps = list(range(num + 1))
    runs: list[int] = []
    # (first, end, free slots): reverse the steps first..end-1, whose input is stored.
    stack = [(0, num, num_slots - 1)]
    while stack:
        first, end, free = stack.pop()
        length = end - first
        if free == 0 and length > 1:
            # No slot is left: each step is reached from the stored input again.
            for last in range(end - 1, first - 1, -1):
                runs += steps[first : last + 1]
                if last == num - 1:
                    runs.append(num)
                runs.append(2 * num - last)
            continue
        if length == 1:
            runs.append(first)
            if end == num:
                runs.append(num)
            runs.append(2 * num - first)
            continue
        split = first + _first_checkpoint(length, free + 1)
        runs += steps[first:split]
        stack.append((first, split, free))
        stack.append((split, end, free - 1))
    return np.array(runs, dtype=np.int32)


@lru_cache(maxsize=1 << 16)
def _first_checkpoint(num_steps: int, num_slots: int) -> int:
    """An optimal distance to the next stored state, for n > 1 and s > 1.

    With ``beta(s, r) = C(s + r, s)`` and r repeats for n, a split m is optimal where both parts
    stay within their repeats: ``beta(s, r-2) <= m <= beta(s, r-1)`` for the left part, which then
    needs r - 1 of them, and ``beta(s-1, r-1) <= n - m <= beta(s-1, r)`` for the right.
    """
    repeats = num_repeats(num_steps, num_slots)
    most_left = comb(num_slots + repeats - 1, num_slots)
    least_right = comb(num_slots - 1 + repeats - 1, num_slots - 1)
    return max(1, min(most_left, num_steps - least_right, num_steps - 1))


def _few_slots(num: int, num_slots: int | None) -> list[int]:
    """A few numbers of slots among which the least peak is searched."""
    if num_slots is not None:
        return [num_slots]
    some = {1, 2, 3, 4, 6, 8, *(num.bit_length() * k // 2 for k in range(1, 5))}
    return sorted(slots for slots in some if 1 <= slots <= num and _is_short(num, slots))


def _is_short(num: int, slots: int) -> bool:
    """Whether the schedule is short enough to write out: with one slot it has L^2 / 2 runs."""
    return num_forwards(num, slots) + num <= MOST_RUNS


def _most_that_fit(fits: Callable[[int], bool], num: int) -> int | None:
    """A number of slots in 1..num that fits while one more does not; ``None`` where none fits."""
    if fits(num):
        return num
    low = next((slots for slots in _few_slots(num, None) if fits(slots)), None)
    if low is None:
        return None
    high = num
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
