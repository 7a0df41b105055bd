"""Plans of compiled groups, whose first runs may come in any order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from typing import Any

from schedsim import Chain, Graph, Schedule
from schedsim.plans.plan import Plan, make_plan

from .trace_order import nearer_the_trace

_FREE_PLANNERS = ("auto", "local_search")
_ORDERED = frozenset({"order", "keep", "recompute"})
"""Options that say in what order first runs come, or for which planners keep it."""


def orders(planner: str, options: Collection[str]) -> list[dict[str, Any]]:
    """Options for the orders of first runs that are searched, one after the other until one fits.

    The groups of a compiled step may come in any order, so that the gradient of a weight can wait
    until there is room for it. Where that is not found to fit, the order of the trace may be.

    Parameters
    ----------
    options
        Names of those that the planner gets anyway.
    """
    if planner not in _FREE_PLANNERS or not _ORDERED.isdisjoint(options):
        return [{}]
    return [{"order": "free"}] if "time_limit_s" in options else [{"order": "free"}, {}]


def first_that_fits(plan_in: Callable[[dict[str, Any]], Plan], tried: list[dict[str, Any]]) -> Plan:
    """The plan in the first of the orders `tried` that has a schedule, or else the best refusal."""
    found: Plan | None = None
    for order in tried:
        plan = plan_in(order)
        found = plan if found is None or is_better(plan, found) else found
        if found.schedule is not None:
            break
    assert found is not None
    return found


def is_better(plan: Plan, other: Plan) -> bool:
    """Whether `plan` takes less time than `other`, or names less bytes where neither fits."""
    if plan.makespan_s is None or other.makespan_s is None:
        return other.makespan_s is None and (
            plan.makespan_s is not None or _least(plan) < _least(other)
        )
    return plan.makespan_s < other.makespan_s


def _least(plan: Plan) -> float:
    found = plan.min_feasible_bytes
    return inf if found is None else found


def back_in_the_trace(workload: Chain | Graph, plan: Plan) -> Plan:
    """`plan` with first runs moved back as far as its peak stays."""
    if plan.schedule is None or not isinstance(workload, Graph):
        return plan
    runs = nearer_the_trace(workload, plan.schedule.bind(workload).tolist())
    return make_plan(
        workload,
        plan.budget_bytes,
        Schedule(workload.op_names, runs),
        planner=plan.planner,
        options=plan.options,
        lower_bound_s=plan.lower_bound_s,
        bound_scope=plan.bound_scope,
        least=plan.least,
        seed=plan.seed,
        setting=plan.setting,
        search=plan.search,
    )
