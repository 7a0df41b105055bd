"""The plan of a step of one part, in which the code between its halves is one op of the graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from schedsim import Schedule, simulate
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..records.step_record import StepRecord
from .known_steps import KnownSteps
from .schedule_search import ScheduleSearch, beside_a_step, infeasible, named_budget

log = logging.getLogger("schedsim.drop_in")

_SMALLER_SHARES = (0.85, 0.7)
"""Shares of the open sizes that are also planned for: smaller batches recompute less."""
_LARGER_SHARE, _LEAST_LARGER, _MOST_LARGER = 4.0, 1.1, 4
"""Times the open sizes at which a schedule is also sought, down to so little, in so many tries."""


def plan_single(known: KnownSteps, search: ScheduleSearch, record: StepRecord) -> tuple[int, int]:
    """Plan a step of one part.

    Returns
    -------
    (number, peak_bytes)
        The number of the schedule that the part runs by, and the peak of the step.

    Raises
    ------
    InfeasibleBudgetError
        The step does not fit the budget.
    """
    part, binding = known.single(record)
    plan, budget = _searched(known, search, record)
    if plan.schedule is None:
        raise infeasible(known, f"a step{part.sizes.in_words(binding)}", plan)
    least = known.by_itself(record)
    if least > budget:
        raise InfeasibleBudgetError(
            f"a step{part.sizes.in_words(binding)} does not fit {format_bytes(budget)}: the "
            f"code outside of its part takes {format_bytes(least)}",
            plan=replace(plan, least=LeastBudget(least)),
            hint=f"{named_budget(known, least)}, or a smaller batch{beside_a_step(known)}",
        )
    known.plan = plan
    log.info("%s", plan)
    if binding:
        part.trust.expect(part.add(plan.schedule), now=True)
    if len(plan.schedule) > part.graph.num_ops:
        _plan_smaller(known, search, record)
    _plan_larger(known, search, record)
    assert plan.peak_bytes is not None
    planned = known.peak_of(record, plan.schedule) if part.use.lacking else plan.peak_bytes
    return part.add(plan.schedule), max(planned, least)


def number_for_all(
    known: KnownSteps, records: Sequence[StepRecord], planned: Sequence[int]
) -> tuple[int, list[int]]:
    """A schedule of one part for steps of several kinds, as beside another model's and alone.

    A call has one schedule: as it begins, nobody knows what comes between its halves.

    Parameters
    ----------
    planned
        The numbers of the schedules that were planned for each kind by itself.

    Returns
    -------
    (number, peaks_bytes)
        The quickest of these that is within the budget in steps of every kind, or else of all that
        are known; and the peaks of these steps.

    Raises
    ------
    InfeasibleBudgetError
        None is.
    """
    part, binding = known.single(records[0])
    assert known.budget_bytes is not None
    found: dict[int, list[int]] = {}

    def fits(number: int) -> bool:
        cost = part.cost(number, binding)
        found[number] = [
            max(known.single_peak(it, part, binding, cost), known.by_itself(it)) for it in records
        ]
        return max(found[number]) <= budget_bytes

    budget_bytes = known.budget_bytes
    for numbers in (dict.fromkeys(planned), range(len(part.schedules))):
        fitting = [number for number in numbers if fits(number)]
        if fitting:
            number = min(fitting, key=lambda number: part.cost(number, binding).time_s)
            return number, found[number]
    least = min(map(max, found.values()))
    assert known.plan is not None  # of one of these kinds
    raise InfeasibleBudgetError(
        f"steps of {len(records)} kinds that begin with one part do not fit "
        f"{format_bytes(budget_bytes)} by one schedule of it: they take {format_bytes(least)}",
        plan=replace(known.plan, least=LeastBudget(least)),
        hint=f"{named_budget(known, least)}, or a smaller batch{beside_a_step(known)}",
    )


def store_all_peak(known: KnownSteps, record: StepRecord) -> int:
    """The peak of a step of one part that keeps everything."""
    part, binding = known.single(record)
    workload = known.workload(record, part, binding)
    schedule = Schedule.store_all(workload)
    most = max(simulate(workload, schedule).peak_bytes, known.by_itself(record))
    return max(most, known.peak_of(record, schedule)) if part.use.lacking else most


def _searched(known: KnownSteps, search: ScheduleSearch, record: StepRecord) -> tuple[Plan, int]:
    """A plan at the largest sizes, and the budget in bytes."""
    part, binding = known.single(record)
    workload = known.workload(record, part, binding)
    budget = known.budget_for(workload)
    plan = search.search_long(workload, budget, 1.0)
    if plan.schedule is not None and part.use.lacking:
        # Another backward runs then, which may take a little more.
        over = known.peak_of(record, plan.schedule) - budget
        if over > 0:
            plan = search.search_long(workload, max(1, budget - over), 1.0)
        if plan.schedule is None or known.peak_of(record, plan.schedule) > budget:
            workload = known.workload(record, part, binding, zeros=True)
            plan = search.search_long(workload, budget, 1.0)
    return plan, budget


def _plan_smaller(known: KnownSteps, search: ScheduleSearch, record: StepRecord) -> None:
    """Plan schedules for batches smaller than the largest, which need less recomputation."""
    part, binding = known.single(record)
    assert known.budget_bytes is not None
    for share in _SMALLER_SHARES if binding else ():
        smaller = tuple(max(1, int(share * size)) for size in binding)
        store_all = part.store_all_cost(smaller)
        if known.single_peak(record, part, smaller, store_all) <= known.budget_bytes:
            part.trust.expect(store_all.number, now=True)
            return
        workload = known.workload(record, part, smaller)
        plan = search.search(workload, known.budget_bytes, 0.25)
        if plan.schedule is not None:
            part.trust.expect(part.add(plan.schedule), now=True)


def _plan_larger(known: KnownSteps, search: ScheduleSearch, record: StepRecord) -> None:
    """Plan a schedule for batches larger than any, as far as one fits: their steps find it."""
    part, binding = known.single(record)
    if not binding or known.options.largest:
        return
    share = _LARGER_SHARE
    for _ in range(_MOST_LARGER):
        larger = part.sizes.grown(binding, share)
        budget = known.budget_at(record, larger)
        costs = (part.cost(number, larger) for number in range(len(part.schedules)))
        if any(known.single_peak(record, part, larger, cost) <= budget for cost in costs):
            return
        plan = search.search(known.workload(record, part, larger), budget, 0.25)
        if plan.schedule is not None:
            part.trust.expect(part.add(plan.schedule), now=True)
            return
        # What is not resident grows about as the product of the sizes does.
        least, resident = plan.min_feasible_bytes or 2 * budget, known.beside(record).resident_bytes
        ratio = max(0, budget - resident) / max(1, least - resident)
        share *= 0.97 * ratio ** (1 / len(binding))
        if share < _LEAST_LARGER:
            return
