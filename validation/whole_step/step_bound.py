"""Whether a compiled step stays within its budget: measured once, and planned tighter if not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch import nn

from schedsim.dataflow.graph import Graph
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget
from schedsim.units import format_bytes

from ..guards.differential import Both
from ..measure import get_meter
from ..measure.meters import meter_of_budgets
from .step_planning import PlannedStep, plan_step
from .step_settings import Settings

MOST_TRIES = 4
"""Most plans of one step, each tighter by what the plan before measured too much."""


def kept_within(
    model: nn.Module,
    settings: Settings,
    planned: PlannedStep,
    budget_bytes: int,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
) -> PlannedStep:
    """`planned` with its measured peak, if it is compiled; planned tighter if the peak is too high.

    With several ranks, the highest peak of any rank counts for all.

    Raises
    ------
    InfeasibleBudgetError
        No plan was found whose compiled step measures within the budget.
    """
    if not settings.compile or planned.captured.level != "op":
        return planned
    within, least, named = budget_bytes, None, None
    for _ in range(MOST_TRIES):
        peak = _peak(model, settings, planned, given)
        if not settings.ranks.alone:
            peak = max(settings.ranks.gather(peak, "measure the compiled step"))
        if peak <= budget_bytes:
            return replace(planned, measured_bytes=peak)
        least = peak if least is None else min(least, peak)
        assert planned.plan.peak_bytes is not None
        # Within as much more as the step takes beyond its plan, that plan is asked for again.
        again = within + peak - planned.plan.peak_bytes
        named = again if named is None else min(named, again)
        within = min(within, planned.plan.peak_bytes) - (peak - budget_bytes)
        if within <= planned.captured.workload.static_bytes:
            break
        try:
            planned = plan_step(planned.captured, within, planned.store_all_bytes, settings, given)
        except InfeasibleBudgetError:  # names what plans need, which is less than what they take
            break
    assert least is not None
    assert named is not None
    raise InfeasibleBudgetError(
        f"the compiled step of {type(model).__name__} measures {format_bytes(least)}, over its "
        f"budget of {format_bytes(budget_bytes)}",
        plan=replace(planned.plan, least=LeastBudget(named)),
        hint=f"budget={named}, or compile=False, whose bytes are exact",
    )


def _peak(
    model: nn.Module,
    settings: Settings,
    planned: PlannedStep,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
) -> int:
    """Measured peak of a step in bytes, with all that is resident and counted."""
    captured, (inputs, keywords) = planned.captured, given
    device = next(model.parameters()).device
    meter = get_meter(meter_of_budgets(device), device)
    recorded = captured.recorded
    both = Both(model, settings.loss, recorded)
    with recorded.settled() if recorded is not None else nullcontext():
        # Twice: what a library allocates once and for all does not belong to the step.
        peaks = [both.peak_bytes(planned.module, inputs, keywords, meter) for _ in range(2)]
    workload = captured.workload
    assert isinstance(workload, Graph)
    resident = workload.static_bytes + sum(workload.inputs.values())
    return resident + peaks[-1]
