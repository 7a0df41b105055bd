"""Checks of what a foreign planner returns: a schedule or a plan, replayed before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import SchedsimError
from ..files.workload_files import workload_hash
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from .claims import mismatches
from .plan import OPTIMALITY_TOLERANCE, Plan, make_plan

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph


def checked_plan(
    found: object,
    workload: Chain | Graph,
    budget_bytes: int,
    *,
    planner: str,
    options: Mapping[str, Any],
) -> Plan:
    """A plan from what `planner` returned, if the replay confirms it.

    Parameters
    ----------
    found
        A `Schedule` of `workload`; a `Plan`; or ``None`` where nothing was found that fits.

    Raises
    ------
    SchedsimError
        `found` is none of these, is over the budget, is for another workload, or is a plan that its
        own replay refutes.
    InvalidScheduleError
        The schedule is not legal.
    """
    if isinstance(found, Plan):
        return _checked(found, workload, budget_bytes, planner)
    if found is not None and not isinstance(found, Schedule):
        raise SchedsimError(
            f"planner {planner!r} returned a {type(found).__name__}",
            hint="a planner returns a Schedule, a Plan, or None where nothing fits",
        )
    if found is not None:
        _check_peak(simulate(workload, found).peak_bytes, budget_bytes, planner)
    return make_plan(workload, budget_bytes, found, planner=planner, options=options)


def _checked(plan: Plan, workload: Chain | Graph, budget_bytes: int, planner: str) -> Plan:
    if plan.workload.content_hash != workload_hash(workload):
        raise SchedsimError(
            f"planner {planner!r} returned a plan of another workload, {plan.workload.name!r}",
            hint="end it with schedsim.plans.plan.make_plan(workload, budget_bytes, ...)",
        )
    problems = []
    if plan.budget_bytes != budget_bytes:
        problems.append(f"the plan is for {plan.budget_bytes} bytes instead of {budget_bytes}")
    if plan.schedule is not None:
        simulation = plan.simulate(workload)
        _check_peak(simulation.peak_bytes, budget_bytes, planner)
        problems += mismatches(plan, simulation)
        if plan.lower_bound_s > simulation.makespan_s * (1 + OPTIMALITY_TOLERANCE):
            problems.append(f"its lower bound {plan.lower_bound_s} s is above its step time")
        met = simulation.makespan_s <= plan.lower_bound_s * (1 + OPTIMALITY_TOLERANCE)
        if met != (plan.status == "optimal"):
            relation = "meets" if met else "is above"
            problems.append(f"it says {plan.status}, but its step time {relation} its bound")
    elif plan.status != "infeasible":
        problems.append(f"the plan says {plan.status}, but has no schedule")
    if problems:
        raise SchedsimError(
            f"planner {planner!r} returned a plan that its replay refutes: {problems[0]}",
            hint="end it with schedsim.plans.plan.make_plan, which fills in the true numbers",
        )
    return plan


def _check_peak(peak_bytes: int, budget_bytes: int, planner: str) -> None:
    if peak_bytes > budget_bytes:
        raise SchedsimError(
            f"planner {planner!r} planned {peak_bytes} bytes for a budget of {budget_bytes}",
            hint="its own count of memory is wrong: schedsim.simulate gives the true peak",
        )
