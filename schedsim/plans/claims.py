"""Whether a plan says of its schedule what the replay gives."""

from __future__ import annotations

from ..simulation.result import Simulation
from .plan import Plan


def mismatches(plan: Plan, simulation: Simulation) -> list[str]:
    """What `plan` says otherwise than the replay of its schedule, in words; O(1).

    The peak must be the same to the byte, the step time within rounding.
    """
    found = []
    if plan.peak_bytes != simulation.peak_bytes:
        found.append(f"the plan says peak {plan.peak_bytes}, the replay {simulation.peak_bytes}")
    said = plan.makespan_s or 0.0
    if abs(said - simulation.makespan_s) > 1e-9 * simulation.makespan_s:
        found.append(f"the plan says step time {said} s, the replay {simulation.makespan_s} s")
    return found
