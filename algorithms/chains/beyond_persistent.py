"""A short look for schedules of a chain beyond the persistent ones, by a ladder of budgets.

A search that ends by its work may succeed within a small budget and fail within a larger one. So
that more memory never costs time, the schedules come from budgets that depend on the chain alone,
each with a search of the same length: a larger budget has all that a smaller one has.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

from schedsim.dataflow.chain import Chain
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._demand_search import MAX_STAGES
from .chain_optimum import Optimum, search_optimum
from .sweep_bound import sweep_bound_s

MOST_EXACT = 12
"""The most stages of a chain that is solved to the end: some ten thousand states at most."""

# Units of work of a search, divided by the number of stages, because a state takes time by the
# stage. That is no longer than the persistent schedules take. A rung has a longer one than the
# bound at a budget.
_LOOK_AT_RUNG, _LOOK = 0.05, 0.03

# Places of which the ladder takes its rungs, nearer to each other at small budgets, where a byte
# saves the most time.
_NUM_PLACES = 256

# Between one rung and the next the bound rises by this part of the store-all time, or by more: what
# a search finds at one place, it mostly finds at the places beside it.
_RISE = 0.0125

# Two times differ if their relative difference is at least this.
_TINY = 1e-9


def look(
    chain: Chain, budget_bytes: int, *, below_s: float = math.inf, work: float = _LOOK
) -> Optimum:
    """A search over all schedules within `budget_bytes`: short, or exact for few stages.

    Parameters
    ----------
    below_s
        Makespan of a schedule that is known.
    work
        Units of work times stages, where it is no exact search.
    """
    if is_exact(chain):
        return search_optimum(chain, budget_bytes, below_s=below_s)
    effort = Effort(work / chain.num_stages)
    return search_optimum(chain, budget_bytes, below_s=below_s, effort=effort)


def is_exact(chain: Chain) -> bool:
    """Whether `look` comes to its end at every budget, with a schedule that fits.

    That is not sure where a search counts less memory than schedules need: see `search_optimum`.
    """
    if chain.num_stages > MOST_EXACT or any(chain.gradient_bytes):
        return False
    return all(
        stage.saving_workspace_bytes is None
        or stage.saving_workspace_bytes >= stage.forward_workspace_bytes
        for stage in chain.stages
    )


def rungs_up_to(chain: Chain, least_bytes: int, budget_bytes: int) -> Iterator[tuple[int, float]]:
    """The budgets of the ladder up to `budget_bytes`, the largest first.

    Of the places at which the bound is nearly the same the largest is a rung.

    Parameters
    ----------
    least_bytes
        The first rung, which must depend on `chain` alone.

    Yields
    ------
    int, float
        The budget; a bound on the time of all schedules within it.

    Notes
    -----
    A place takes O(L), for L stages.
    """
    room = simulate(chain, Schedule.store_all(chain)).peak_bytes - least_bytes
    unit_s = _RISE * chain.store_all_s
    places = sorted({least_bytes + room * k**2 // _NUM_PLACES**2 for k in range(_NUM_PLACES + 1)})
    last = bisect_right(places, budget_bytes)
    above = None if last == len(places) else _bound_s(chain, places[last]) // unit_s
    for place in reversed(places[:last]):
        bound_s = _bound_s(chain, place)
        level = bound_s // unit_s
        if level != above or place == places[0]:
            yield place, bound_s
        above = level


def _bound_s(chain: Chain, budget_bytes: int) -> float:
    """The bound that is proven before the search begins."""
    return search_optimum(chain, budget_bytes, effort=Effort(0.0)).bound_s


def faster_schedule(
    chain: Chain, budget_bytes: int, known_s: float, least_bytes: int
) -> Schedule | None:
    """A schedule of any kind that takes less than `known_s`, within `budget_bytes`.

    Where `known_s` never rises with the budget, the better of the two never does.

    Parameters
    ----------
    known_s
        Makespan of the best schedule of another kind.
    least_bytes
        As of `rungs_up_to`.

    Notes
    -----
    The ladder ends at the first rung at which nothing can be better, by the bound before the search
    or by that of the search.
    """
    if not known_s:
        return None  # a chain without times
    if is_exact(chain):
        return look(chain, budget_bytes, below_s=known_s).schedule
    best, best_s = None, known_s
    for rung, bound_s in rungs_up_to(chain, least_bytes, budget_bytes):
        if bound_s >= best_s * (1 - _TINY):
            break
        # The search may not depend on what is known at this budget: another budget has to see the
        # same.
        found = look(chain, rung, work=_LOOK_AT_RUNG)
        if found.schedule is not None:
            time_s = simulate(chain, found.schedule).makespan_s
            if time_s < best_s * (1 - _TINY):
                best, best_s = found.schedule, time_s
        if found.bound_s >= best_s * (1 - _TINY):
            break
    return best


def with_bound(chain: Chain, budget_bytes: int, known: Schedule) -> Plan:
    """The plan of a known schedule with the bound that a look at this very budget proves.

    Where that look finds a schedule, its time is the bound, and no more: what it finds, it might
    not find within a larger budget.
    """
    known_s = simulate(chain, known).makespan_s
    swept_s = sweep_bound_s(chain, budget_bytes)
    found = Optimum(None, swept_s, known_s <= swept_s * (1 + _TINY), False, 0, 0)
    if chain.num_stages <= MAX_STAGES and not found.finished:
        found = look(chain, budget_bytes, below_s=known_s)
    bound_s = min(known_s, max(swept_s, found.bound_s))
    if found.finished and found.schedule is None and not found.relaxed:
        bound_s = known_s  # nothing is faster, but for the error of sums of floats
    return make_plan(
        chain,
        budget_bytes,
        known,
        planner="chain_optimum",
        lower_bound_s=bound_s,
        bound_scope=ANY_SCHEDULE,
        search=SearchRecord(
            bound_by=(
                "search over all schedules" if found.bound_s > swept_s else "sweeps of the chain"
            ),
            figures={"states": found.num_states, "relaxed": found.relaxed},
        ),
    )
