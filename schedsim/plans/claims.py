"""Whether a plan is of a workload, and says of its schedule what the replay gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidScheduleError
from ..files.workload_files import workload_hash
from ..simulation.result import Simulation
from .plan import Plan

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph


def check_belongs(plan: Plan, workload: Chain | Graph) -> None:
    """Refuse the plan of another workload, whose op names may well fit this one.

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
    """Refuse a plan whose numbers are not those of the replay of its schedule.

    With `times` the step time is compared too; two measurements of one model never agree on it.

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
    """In words, the numbers of `plan` that are not those of the replay of its schedule; O(1).

    The peak must be the same to the byte, the step time within rounding.
    """
    found = []
    if plan.peak_bytes != simulation.peak_bytes:
        found.append(f"the plan says peak {plan.peak_bytes}, the replay {simulation.peak_bytes}")
    said = plan.makespan_s or 0.0
    if times and abs(said - simulation.makespan_s) > 1e-9 * simulation.makespan_s:
        found.append(f"the plan says step time {said} s, the replay {simulation.makespan_s} s")
    return found
