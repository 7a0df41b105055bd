"""The command ``schedsim plan MODEL`` with chunks, micro-batches or prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.plans.plan import Plan

from ..environment import device_name
from ..targets import load_target
from ..whole_step.resident_state import counted_line
from ..whole_step.step_capture import capture_step
from ..whole_step.step_planning import resolved_budget, with_origin
from ..whole_step.step_settings import Settings
from .choices import choose, wanted
from .way import Way, table


@dataclass(frozen=True)
class Outcome:
    """A plan of the quickest way allowed, its workload, and the prices of all ways.

    Attributes
    ----------
    lines
        What was captured and chosen, in lines for people.
    num_parts
        Number of micro-batches of a step: the workload is one of them.
    """

    workload: Chain | Graph
    plan: Plan
    lines: tuple[str, ...]
    ways: tuple[Way, ...]
    num_parts: int


class Allowed(TypedDict, total=False):
    """The ways that a plan may use, by the names of `Settings`."""

    level: str
    planner: str
    options: Mapping[str, Any]
    chunk: Any
    accumulate: int | str | None
    offload: Any
    host_bytes: int | None
    remeasure: bool


def plan_target(
    text: str,
    budget: int | str,
    *,
    device: str | None = None,
    price_all: bool = False,
    **allowed: Unpack[Allowed],
) -> Outcome:
    """The plan of the model that `text` names within `budget`, by the quickest way allowed.

    Parameters
    ----------
    price_all
        Whether to price the other ways too, without choosing them.

    Raises
    ------
    InfeasibleBudgetError
        No way that is allowed fits.
    """
    target = load_target(text, device)
    settings = replace(Settings(budget, loss=target.loss, level="block"), **allowed)
    model, inputs, keywords = target.model, target.inputs, dict(target.keywords)
    first = None
    if price_all or not wanted(settings):
        plain = Settings(
            budget, loss=target.loss, level=settings.level, remeasure=settings.remeasure
        )
        first = capture_step(model, inputs, keywords, plain)
    budget_bytes, _ = resolved_budget(settings, first, model, (inputs, keywords))
    chosen = choose(
        model, inputs, keywords, settings, budget_bytes, first, plan_all=True, price_all=price_all
    )
    captured = chosen.captured
    lines = [
        f"{text} by {captured.level}: {len(captured.workload.op_names)} ops, "
        f"on {device_name(target.device)}"
    ]
    if captured.num_parts > 1:
        lines.append(f"one of {captured.num_parts} micro-batches of a step, the largest")
    lines.append(counted_line(model, captured.level))
    lines += [*captured.notes, *table(list(chosen.ways))]
    plan = with_origin(chosen.plan, captured, chosen.settings)
    return Outcome(captured.workload, plan, tuple(lines), chosen.ways, captured.num_parts)
