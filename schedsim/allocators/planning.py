"""Plans whose budget bounds what the allocator reserves, not only what tensors need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..plans.least_budget import LeastBudget
from ..plans.plan import OPTIMALITY_TOLERANCE, Plan
from ..plans.setting import AllocatorChoice
from . import allocate, check_allocator

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

NUM_STEPS = 2
"""Steps that are measured: the second runs on what the first has left in the cache."""

# Inner budgets closer than this share of the budget are not told apart.
_RESOLUTION = 0.005
# How often the plan of the least memory is measured, each time at the budget that it needs.
_MOST_MEASURED = 4


def plan_reserved(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: Callable[[int], Plan],
    allocator: str = "cuda-caching",
    *,
    max_plans: int | None = None,
    spare_waits: bool = False,
    **options: Any,
) -> Plan:
    """The fastest plan found whose reserved bytes are within `budget_bytes`.

    `planner` is asked for a plan within an inner budget, at first the budget itself. Two steps of
    that plan are played on a device of `budget_bytes`. Where the device runs out of memory, the
    inner budget is lowered until it does not, then raised again by halving as far as plans still
    fit. A full device returns cached, unused memory to the driver, and the step waits for that: of
    plans equally fast, the plan with the fewest such waits is taken, and says how many there are.
    With `spare_waits` only plans without any are taken.

    Parameters
    ----------
    planner
        Inner budget in bytes -> plan.
    spare_waits
        Whether reserved bytes must be within the budget without anything returned to the device.
    max_plans
        How often to plan: 12 times for a chain by default, 4 for a graph, whose planners take their
        time limit each time.
    **options
        Of `schedsim.allocate`.

    Returns
    -------
    Plan
        Its setting holds the allocator, with the bytes reserved and the inner budget.
        The lower bound is that of the budget itself: what needs more live bytes reserves more too.

    Notes
    -----
    Reserved bytes do not grow steadily with the inner budget, so that a faster plan may exist
    between those tried; the gap to the bound says how much faster at the most.
    """
    check_allocator(allocator)
    if max_plans is None:
        max_plans = 12 if workload.kind == "chain" else 4
    started = time.perf_counter()
    first = planner(budget_bytes)
    best: _Measured | None = None
    inner, low, high = budget_bytes, 0, budget_bytes
    plan = first
    for left in reversed(range(max_plans)):
        if plan.feasible:
            found = _measure(workload, plan, inner, budget_bytes, allocator, options)
            if found.fits and not (spare_waits and found.num_emptied):
                if best is None or found.rank < best.rank:
                    best = found
                low = inner
                if inner == budget_bytes:
                    break
            else:
                assert plan.peak_bytes is not None
                high = min(high, inner, plan.peak_bytes)
            if low:
                inner = (low + high) // 2
            else:
                # As if the share that the allocator adds stayed the same.
                inner = min(inner * budget_bytes // found.reserved_bytes, high - 1)
        else:
            floor = plan.min_feasible_bytes
            low = max(low, floor or inner)
            if best is not None or floor is None or floor >= high:
                break
            inner = floor  # the least memory: once, before giving up
            high = floor + 1
        if not left or (high - low <= _RESOLUTION * budget_bytes and low):
            break
        plan = planner(inner)
    chosen, least = best, LeastBudget()
    if chosen is None:
        chosen, least = _leanest(
            workload, budget_bytes, planner, first, allocator, options, spare_waits=spare_waits
        )
    if chosen is None:
        return replace(
            first,
            status="infeasible",
            setting=replace(first.setting, allocator=AllocatorChoice(allocator, dict(options))),
            peak_bytes=None,
            makespan_s=None,
            overhead=None,
            gap=None,
            schedule=None,
            least=least,
            planning_s=time.perf_counter() - started,
        )
    return _finished(chosen, first, allocator, options, started)


def _leanest(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: Callable[[int], Plan],
    first: Plan,
    allocator: str,
    options: Mapping[str, Any],
    *,
    spare_waits: bool,
) -> tuple[_Measured | None, LeastBudget]:
    """The plan of least memory, where that plan fits; else the least budget that would fit it.

    This plan does not depend on the budget, so that it is found again at the budget that is named.
    """
    # A floor of live bytes is one of reserved bytes, too.
    unknown = LeastBudget(None, None, first.least.floor_bytes, first.least.scope)
    inner = first.min_feasible_bytes
    if inner is None or first.feasible:
        inner = planner(0).min_feasible_bytes
    if inner is None:
        return None, unknown
    plan = planner(inner)
    if not plan.feasible:
        return None, unknown
    wanted = budget_bytes
    for _ in range(_MOST_MEASURED):
        found = _measure(workload, plan, inner, wanted, allocator, options)
        waits = spare_waits and found.num_emptied
        if found.reserved_bytes <= wanted or (found.fits and not waits):
            break
        # What copies wait for depends on the budget: measure again at the one to be named.
        wanted = found.reserved_bytes
    else:
        return None, unknown
    if wanted == budget_bytes:
        return found, unknown
    return None, replace(unknown, found_bytes=wanted, op=plan.binding_op)


@dataclass(frozen=True)
class _Measured:
    """A plan, and what is reserved for it: on a device without limit, and on that of the budget."""

    plan: Plan
    inner: int
    makespan_s: float
    reserved_bytes: int
    within_bytes: int
    fits: bool
    num_emptied: int

    @property
    def rank(self) -> tuple[float, int]:
        """The lower the better."""
        return (self.makespan_s, self.num_emptied)


def _measure(
    workload: Chain | Graph,
    plan: Plan,
    inner: int,
    budget_bytes: int,
    allocator: str,
    options: Mapping[str, Any],
) -> _Measured:
    # Runs that wait for memory wait for that of the whole budget, as when the plan is replayed.
    plan = replace(plan, budget_bytes=budget_bytes)
    simulation = plan.simulate(workload)
    plan = replace(
        plan,
        peak_bytes=simulation.peak_bytes,
        makespan_s=simulation.makespan_s,
        overhead=simulation.makespan_s / plan.store_all_s - 1.0 if plan.store_all_s else 0.0,
    )
    given = dict(options, num_steps=NUM_STEPS)
    free = tight = allocate(simulation, allocator, **given)
    if free.peak_reserved_bytes > budget_bytes:
        tight = allocate(simulation, allocator, capacity_bytes=budget_bytes, **given)
    return _Measured(
        plan,
        inner,
        simulation.makespan_s,
        free.peak_reserved_bytes,
        tight.peak_reserved_bytes,
        tight.fits,
        tight.num_emptied,
    )


def _finished(
    chosen: _Measured,
    first: Plan,
    allocator: str,
    options: Mapping[str, Any],
    started: float,
) -> Plan:
    """The chosen plan, for the budget that was asked for."""
    bound = min(first.lower_bound_s, chosen.makespan_s)
    met = chosen.makespan_s <= bound * (1 + OPTIMALITY_TOLERANCE)
    return replace(
        chosen.plan,
        setting=replace(
            chosen.plan.setting,
            allocator=AllocatorChoice(
                allocator,
                dict(options),
                inner_budget_bytes=chosen.inner,
                reserved_bytes=chosen.within_bytes,
                num_emptied=chosen.num_emptied,
            ),
        ),
        status="optimal" if met else "feasible",
        lower_bound_s=bound,
        bound_scope=first.bound_scope,
        gap=max(0.0, chosen.makespan_s / bound - 1.0) if bound else 0.0,
        least=LeastBudget(),
        planning_s=time.perf_counter() - started,
    )
