"""Checks that a plan belongs to a workload, and that a replay gives the numbers of the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidScheduleError
from ..files.workload_files import workload_hash
from ..simulation.result import Simulation
from ..units import format_bytes
from .plan import Plan

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph


def check_belongs(plan: Plan, workload: Chain | Graph) -> None:
    """Refuse a plan of another workload, even where its op names fit this one.

    Raises
    ------
    InvalidScheduleError
        The content hash of `workload` is not the plan's.
    """
    if plan.workload.content_hash != workload_hash(workload):
        raise InvalidScheduleError(
            f"the plan is for another workload: its {plan.workload.name!r} had other stages, "
            "sizes or times",
            rule="workload",
            run_index=None,
            op_name="",
            hint="give the workload it was made for, or plan again",
        )


def check_claims(plan: Plan, simulation: Simulation, *, times: bool = True) -> None:
    """Refuse a plan whose numbers differ from the replay of its schedule.

    With `times` the step time is compared too. Turn it off for a model that was measured again: two
    measurements never agree on times.

    Raises
    ------
    InvalidScheduleError
        A number differs.
    """
    if found := mismatches(plan, simulation, times=times):
        raise InvalidScheduleError(
            "; ".join(found),
            rule="claims",
            run_index=None,
            op_name="",
            hint="plan again: the file was edited, or made by another version",
        )


def mismatches(plan: Plan, simulation: Simulation, *, times: bool = True) -> list[str]:
    """The numbers of `plan` that differ from the replay of its schedule, in words; O(1).

    The peak must be the same to the byte, and within the budget; the step time within rounding.
    """
    found = []
    if simulation.peak_bytes > plan.budget_bytes:
        peak, budget = map(format_bytes, (simulation.peak_bytes, plan.budget_bytes))
        found.append(f"the plan is for a budget of {budget}, the peak of the replay is {peak}")
    if plan.peak_bytes != simulation.peak_bytes:
        found.append(f"the plan says peak {plan.peak_bytes}, the replay {simulation.peak_bytes}")
    said = plan.makespan_s or 0.0
    if times and abs(said - simulation.makespan_s) > 1e-9 * simulation.makespan_s:
        found.append(f"the plan says step time {said} s, the replay {simulation.makespan_s} s")
    return found
