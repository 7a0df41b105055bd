"""Which other ways to spend less memory would fit a budget that was refused: each is planned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from schedsim.errors import InfeasibleBudgetError

from ..whole_step.resident_state import resident_state
from ..whole_step.step_planning import plan_captured
from ..whole_step.step_settings import Settings
from .choices import candidates, captured_ways


def with_helpful_ways(
    error: InfeasibleBudgetError,
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
) -> InfeasibleBudgetError:
    """`error` whose hint offers the ways that `settings` do not allow and that fit, if any do.

    A batch in micro-batches, or a head in chunks, is offered only where a plan with it was found.
    That takes a capture and a plan of each; with several ranks nothing is offered.
    """
    found = helpful_ways(model, inputs, keywords, settings, error.budget_bytes)
    hint = ", or ".join([*found, *([error.hint] if error.hint else [])])
    return InfeasibleBudgetError(error.message, plan=error.plan, hint=hint)


def helpful_ways(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    budget_bytes: int,
) -> list[str]:
    """The options with which a plan within `budget_bytes` was found."""
    if not settings.ranks.alone or _least_bytes(model, settings) >= budget_bytes:
        return []

    def fits(**allowed: Any) -> bool:
        return _fits(model, inputs, keywords, replace(settings, **allowed), budget_bytes)

    micro, chunks = settings.accumulate is None, settings.chunk is None
    found = []
    if micro and fits(accumulate="auto"):
        found.append("accumulate='auto' (micro-batches)")
    if chunks and fits(chunk="auto"):
        found.append("chunk='auto'")
    if not found and micro and chunks and fits(accumulate="auto", chunk="auto"):
        found.append("accumulate='auto' with chunk='auto'")
    return found


def _least_bytes(model: nn.Module, settings: Settings) -> int:
    """What is resident at the end of a step in every way."""
    state = resident_state(model, settings.optimizer, settings.extra_bytes)
    own = state.parameters_bytes + state.gradients_bytes + state.buffers_bytes
    return own + state.optimizer_bytes + state.extra_bytes


def _fits(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    budget_bytes: int,
) -> bool:
    """Whether the way in the smallest parts that `settings` allow has a plan within the budget."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            asked, _ = candidates(model, inputs, keywords, settings)
            smallest = max(asked, key=lambda way: (way[1], len(way[0])))
            whole_batch = settings.accumulate == "auto" and smallest[1] == 1
            whole_head = settings.chunk == "auto" and not smallest[0]
            if whole_batch or whole_head:
                return False
            steps = captured_ways(model, inputs, keywords, settings, [smallest], None, [])
            plan = plan_captured(steps[0].captured, budget_bytes, steps[0].settings)
        except Exception:  # a way that cannot be captured is none to offer
            return False
    return plan.schedule is not None
