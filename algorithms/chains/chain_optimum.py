"""The optimum of a chain over all schedules: a stored activation may go before its own backward."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError
from schedsim.kernels.compiled import run
from schedsim.plans.effort import ENDED_BY, Effort, EndedBy
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.progress import current
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._demand_search import (
    EXHAUSTED,
    EXPANDED,
    FOUND,
    FULL,
    GOAL,
    HEAP,
    LACKING,
    MAX_STAGES,
    NUM,
    ChainItems,
    States,
    begin,
    expand,
    max_states,
    runs_to,
)
from .persistent import Problem
from .rotor import rotor
from .sweep_bound import sweep_bound_s, sweep_work

MAX_BYTES = 512 * 2**20
"""Memory for states: room for about six million."""

_WORK = 20.0
_EXPANSIONS_PER_UNIT = 150_000.0
# And states that are entered into a larger table in a unit.
_ENTERED_PER_UNIT = 1_500_000.0
_FIRST_STATES, _SLICE = 4096, 4096
# Searches with other budgets, to find the least feasible one.
_MOST_BUDGETS = 40


@dataclass(frozen=True, slots=True)
class Optimum:
    """The result of a search over all schedules of a chain.

    Attributes
    ----------
    schedule
        The fastest, where one below the given time was found; it is within the budget.
    bound_s
        No schedule takes less; infinite where none fits.
    finished
        Whether the search came to its end.
    relaxed
        Whether it came to its end, but its schedule does not fit: then only the bound is known.
    num_states
        Number of states seen.
    lacking_bytes
        Where nothing fits: a budget must grow by at least this to give another answer.
    """

    schedule: Schedule | None
    bound_s: float
    finished: bool
    relaxed: bool
    num_states: int
    lacking_bytes: int


def search_optimum(
    chain: Chain,
    budget_bytes: int,
    *,
    below_s: float = math.inf,
    effort: Effort | None = None,
    max_bytes: int = MAX_BYTES,
    timeless: bool = False,
) -> Optimum:
    """A* over all schedules of `chain` that take less than `below_s`.

    Parameters
    ----------
    below_s
        Makespan of a schedule that is known.
    effort
        Limits the states to expand; where ``None``, `max_bytes` alone limits them.
    max_bytes
        The most memory that states may take.
    timeless
        Ask whether there is any schedule at all; then `bound_s` is 0 or infinite.

    Notes
    -----
    Every backward, and the loss, runs once: an earlier run of a backward makes a gradient that
    nobody reads before it is recomputed, or, from the end of the step on, demands another backward
    needlessly. Where a forward takes less by keeping its residual, or backwards make gradients of
    parameters, a second run may be of use. The search then counts less memory than schedules need
    (`ChainItems.of`): its bound holds, but what it finds may not fit, and is then not returned.

    Exponential at worst: 3^L demands for each of L backwards.
    """
    items = ChainItems.of(chain, budget_bytes)
    if timeless:
        items = items.without_times()
    states, most = States.of(_FIRST_STATES), max_states(max_bytes)
    run(begin, chain.num_stages, items, states)
    if below_s < math.inf:
        below_s *= 1 - 1e-9
    why = FULL
    while True:
        expansions = _SLICE
        if effort is not None and effort.counted:
            expansions = min(_SLICE, math.ceil(effort.left * _EXPANSIONS_PER_UNIT))
        before = int(states.counts[EXPANDED])
        num_steps = max(1, expansions) * chain.num_stages
        why = run(expand, num_steps, items, states, max(1, expansions), below_s)
        if effort is not None:
            effort.spend((int(states.counts[EXPANDED]) - before) / _EXPANSIONS_PER_UNIT)
        if why in (EXHAUSTED, FOUND):
            break
        if why == FULL:
            if 2 * states.capacity > most:
                break
            states = states.larger(2 * states.capacity)
            if effort is not None:
                effort.spend(int(states.counts[NUM]) / _ENTERED_PER_UNIT)
        elif effort is not None and effort.is_over():
            break
    num, lacking = int(states.counts[NUM]), int(states.counts[LACKING])
    if why == FOUND:
        goal = int(states.counts[GOAL])
        schedule = Schedule(chain.op_names, runs_to(states, goal, chain.num_stages))
        spent_s = float(states.spent_s[goal])
        if simulate(chain, schedule).peak_bytes > budget_bytes:
            return Optimum(None, spent_s, False, True, num, lacking)
        return Optimum(schedule, spent_s, True, False, num, lacking)
    if why == EXHAUSTED:
        return Optimum(None, below_s, True, False, num, lacking)
    bound_s = float(states.heap_s[0]) if states.counts[HEAP] else below_s
    return Optimum(None, min(bound_s, below_s), False, False, num, lacking)


@timed()
def chain_optimum(
    chain: Chain,
    budget_bytes: int,
    *,
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Plan:
    """The fastest schedule of a chain, persistent or not; exact up to about 30 stages.

    A* from the end of the step backwards over what must be in memory there, below the time of the
    best persistent schedule. Where the search does not come to its end, the plan is that persistent
    schedule, with what the search has proven over all schedules.

    Parameters
    ----------
    time_limit_s, effort
        Seconds, or work: a unit is 150,000 states expanded. 20 units by default.
    max_bytes
        Memory for states, 90 bytes each; the search ends when it is used up.

    Raises
    ------
    PlannerLimitError
        The chain has more than 62 stages; or nothing was found and nothing proven within the effort
        and the memory.

    Notes
    -----
    Exponential at worst. Source: schedsim. On chains of 24 to 30 stages the search sees thousands
    to millions of states, fewest where times and sizes differ.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> chain_optimum(chain, 5).makespan_s  # the best persistent schedule takes 13
    11.0
    """
    if chain.num_stages > MAX_STAGES:
        raise PlannerLimitError(
            f"{chain.num_stages} stages are more than the {MAX_STAGES} that a state has bits for",
            hint="group stages, or use --planner auto",
        )
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    given = effort.to_options()
    store_all = Schedule.store_all(chain)
    known: Schedule | None = store_all
    if simulate(chain, store_all).peak_bytes > budget_bytes:
        with effort.part(0.1) as part:
            known = rotor(chain, budget_bytes, effort=part).schedule
    plan = optimum_plan(chain, chain, budget_bytes, known, effort, max_bytes=max_bytes)
    figures = plan.search.figures
    if plan.schedule is None and not plan.proven_infeasible and not figures["relaxed"]:
        raise PlannerLimitError(
            f"{chain.name!r}: no schedule found and none ruled out in {figures['states']:,} states",
            hint="give more effort= or max_bytes=, or use --planner auto",
        )
    if plan.proven_infeasible:
        least = _least_budget(chain, plan.least.floor_bytes, max_bytes)
        plan = replace(plan, least=least)
    return replace(plan, options=given)


def optimum_plan(
    workload: Chain | Graph,
    chain: Chain,
    budget_bytes: int,
    known: Schedule | None,
    effort: Effort,
    *,
    max_bytes: int = MAX_BYTES,
) -> Plan:
    """The plan from the search and a known schedule: the optimum, or that schedule with a bound.

    On more than `MAX_STAGES` stages there is no search, and on more than that of `sweep_bound` no
    bound but the store-all time.

    Parameters
    ----------
    workload
        `chain`, or a graph with the same ops in the same order.
    known
        Within the budget; ``None`` where none is known.
    """
    names = workload.op_names
    known_s = math.inf if known is None else simulate(workload, known).makespan_s
    if known is not None:
        current().report(known_s)
    found = Optimum(None, chain.store_all_s, True, False, 0, 0)
    swept_s, bound_by = chain.store_all_s, "store-all time"
    if known is None or known_s > chain.store_all_s * (1 + 1e-12):
        swept_s, bound_by = sweep_bound_s(chain, budget_bytes), "sweeps of the chain"
        effort.spend(sweep_work(chain.num_stages))
        found = Optimum(None, swept_s, known_s <= swept_s * (1 + 1e-9), False, 0, 0)
        if chain.num_stages <= MAX_STAGES and not found.finished:
            found = search_optimum(
                chain, budget_bytes, below_s=known_s, effort=effort, max_bytes=max_bytes
            )
            if found.bound_s >= swept_s:
                bound_by = "search over all schedules"
    schedule = known if found.schedule is None else Schedule(names, found.schedule.bind(chain))
    bound_s, least = max(found.bound_s, min(swept_s, known_s)), LeastBudget(None, None, 0)
    if found.finished and schedule is not None:
        bound_s = simulate(workload, schedule).makespan_s  # the same but for the order of the sum
    elif found.finished:
        bound_s = chain.store_all_s
        floor_bytes = budget_bytes + max(1, found.lacking_bytes)
        least = LeastBudget(None, None, floor_bytes, ANY_SCHEDULE)
    ended_by: EndedBy = "itself"
    if found.num_states and not found.finished and not found.relaxed:
        # Memory may have run out before the effort did.
        ended_by = max("work", effort.ended_by, key=ENDED_BY.index)
    return make_plan(
        workload,
        budget_bytes,
        schedule,
        planner="chain_optimum",
        lower_bound_s=bound_s,
        bound_scope=ANY_SCHEDULE,
        least=least,
        search=SearchRecord(
            ended_by=ended_by,
            bound_by=bound_by,
            figures={"states": found.num_states, "relaxed": found.relaxed},
        ),
    )


def _least_budget(chain: Chain, low_bytes: int, max_bytes: int) -> LeastBudget:
    """The least budget of any schedule, by halving between `low_bytes` and the persistent least."""
    problem = Problem(chain)
    best = simulate(chain, problem.least_memory_schedule()[0])
    for _ in range(_MOST_BUDGETS):
        if low_bytes >= best.peak_bytes:
            break
        middle = (low_bytes + best.peak_bytes) // 2
        found = search_optimum(
            chain,
            middle,
            effort=Effort(_WORK / 10),
            max_bytes=max_bytes,
            timeless=True,
        )
        if found.schedule is not None:
            best = simulate(chain, found.schedule)
        elif found.finished:
            low_bytes = middle + max(1, found.lacking_bytes)
        else:
            break
    return LeastBudget(best.peak_bytes, best.peak_op, min(low_bytes, best.peak_bytes), ANY_SCHEDULE)
