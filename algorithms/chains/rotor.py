"""Rotor: the optimal persistent schedule of a heterogeneous chain, over memory slots."""

from __future__ import annotations

import math
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.variants import ChosenVariant, check_allowed
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.progress import current
from schedsim.plans.search import SearchRecord
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule

from .persistent import Problem, exact_plan, infeasible_plan

DEFAULT_SLOTS = 500

_WORK = 10.0
_MERGES_PER_UNIT = 1e9
"""Sums that one core computes in about a second, in one of the two roundings."""

# Of the sums of a long chain, that many are left out, because their splits cannot be best; and the
# least slots to start with, however little time there is.
_PRUNED, _FEWEST_SLOTS = 2.5, 16
# The share of the time left that the first solution may take, where only time is limited.
_FIRST_SHARE = 0.8

MAX_TABLE_BYTES = 4 * 2**30
"""Most bytes of the table of rows x slots."""


@timed()
def rotor(
    chain: Chain,
    budget_bytes: int,
    *,
    num_slots: int = DEFAULT_SLOTS,
    gap: float = 0.01,
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    allow: Collection[str] = (),
) -> Plan:
    """The optimal persistent schedule within `budget_bytes`, or one with a proven gap.

    Where all stored sizes are multiples of a unit that gives few enough slots, the dynamic program
    is run once in that unit and is exact. Otherwise it is run twice: with sizes rounded up, for the
    schedule, and down, for the bound; the number of slots doubles until the two are within `gap`.

    Parameters
    ----------
    num_slots
        Slots to start with; also the most that an exact unit may need, but no fewer than 4096.
    gap
        Relative distance between the makespan and its bound at which to stop.
    time_limit_s, effort
        Seconds, or work; 10 units of work where neither is given. No doubling is begun that would
        exceed it; the first solution is always finished, and under a time limit alone has
        fewer slots where `num_slots` of them would take longer.
    allow
        Kinds of variants that may be chosen, of `schedsim.dataflow.variants.VARIANT_KINDS`.

    Notes
    -----
    O(L^3 M) time and O(L^2 M) memory for L stages and M slots; sub-chains that repeat count once.
    The recurrence and its memory rule stand in `schedsim.algorithms.chains.persistent`.

    References
    ----------
    Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous
    chains", arXiv 1911.13214, 2019, section 4.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> rotor(chain, 5).makespan_s, rotor(chain, 5).status
    (13.0, 'optimal')
    """
    progress = current()
    if num_slots < 1:
        raise ValueError(f"num_slots is {num_slots}, but at least 1 slot is needed")
    problem = Problem(chain, check_allowed(allow))
    if budget_bytes < problem.min_feasible_bytes:
        return infeasible_plan(problem, budget_bytes, planner="rotor")
    unit = exact_unit(problem)
    inside = budget_bytes - problem.outside_bytes
    if inside // unit <= min(max(num_slots, 4096), _most_slots(problem)):
        table = problem.solve_slots(budget_bytes, unit, round_up=True)
        return exact_plan(problem, table, budget_bytes, planner="rotor")

    best_s, (best, chosen) = math.inf, problem.least_memory_schedule()
    bound_s = chain.store_all_s
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    slots, used = min(num_slots, _most_slots(problem), _slots_in_time(problem, effort)), 0
    while True:
        before = effort.left
        used = slots
        try:
            makespan_s, schedule, variants, below_s = _both_roundings(problem, budget_bytes, slots)
        except KeyboardInterrupt:
            effort.cancel()  # the best plan so far is still a plan
            break
        effort.spend(2.0 * problem.num_splits * slots / _MERGES_PER_UNIT)
        if schedule is not None and makespan_s < best_s:
            best_s, best, chosen = makespan_s, schedule, variants
        bound_s = max(bound_s, below_s)
        progress.report(best_s, bound_s)
        if best_s <= bound_s * (1 + gap):
            break
        took = before - effort.left
        slots *= 2
        if slots > _most_slots(problem) or not effort.allows(2 * took):
            break
    return make_plan(
        chain,
        budget_bytes,
        best,
        planner="rotor",
        options={"num_slots": used, "gap": gap},
        search=SearchRecord(ended_by=effort.ended_by),
        lower_bound_s=bound_s,
        bound_scope=problem.scope,
        least=problem.least_budget,
        setting=Setting(variants=chosen),
    )


def exact_unit(problem: Problem) -> int:
    """The largest unit of which all sizes that stay stored are multiples."""
    stored = np.concatenate([problem.x[1:-1], problem.saved[: problem.bundles[-2]]])
    return max(1, int(np.gcd.reduce(stored))) if stored.size else 1


def _most_slots(problem: Problem) -> int:
    return MAX_TABLE_BYTES // (8 * problem.num_rows) - 1


def _slots_in_time(problem: Problem, effort: Effort) -> int:
    """The slots of a solution that is done in time, where only time is limited."""
    if effort.counted:
        return 2**31
    sums = _FIRST_SHARE * effort.left * _PRUNED * _MERGES_PER_UNIT
    return max(_FEWEST_SLOTS, int(sums / max(1, problem.num_splits)))


def _both_roundings(
    problem: Problem, budget_bytes: int, slots: int
) -> tuple[float, Schedule | None, tuple[ChosenVariant, ...], float]:
    """Makespan, schedule and variants with sizes rounded up; the bound with sizes rounded down.

    The two dynamic programs run at once: their kernels need no interpreter lock.
    """
    unit = max(1, -(-(budget_bytes - problem.outside_bytes) // slots))
    with ThreadPoolExecutor(1) as pool:
        below = pool.submit(problem.solve_slots, budget_bytes, unit, round_up=False)
        above = problem.solve_slots(budget_bytes, unit, round_up=True)
        bound_s = problem.time_s(below.result(), budget_bytes)
    return problem.time_s(above, budget_bytes), *problem.schedule(above, budget_bytes), bound_s
