"""Whether a plan belongs to a step of this model; differences between machines are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from schedsim.dataflow.copies import parse_copy
from schedsim.errors import InvalidScheduleError, SchedsimError
from schedsim.files.workload_files import workload_hash
from schedsim.plans.plan import Plan
from schedsim.plans.setting import StepChanges
from schedsim.units import format_bytes

from .captured_step import CapturedStep
from .step_capture import capture_step
from .step_planning import offloading_of
from .step_settings import Settings


def captured_for(
    plan: Plan,
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
) -> tuple[CapturedStep, Settings]:
    """The captured step of `model` that `plan` is for, and the settings by which it was planned.

    Raises
    ------
    SchedsimError
        The plan is for another model or other inputs; the message names what differs.
    """
    if plan.schedule is None:
        raise SchedsimError("the plan is infeasible: it has no schedule", hint="plan again")
    step = plan.setting.step
    if step is None:
        guess = "block" if {"F0", "B0"} & set(plan.schedule.names) else "op"
        step = StepChanges(guess)
    settings = replace(
        settings,
        level=step.level,
        chunk=dict(step.chunk) or None,
        accumulate=step.accumulate,
        compile=step.compiled,
        **_links(plan, step.level),
    )
    captured = _capture(plan, model, inputs, keywords, settings)
    try:
        _check_belongs(plan, captured)
    except SchedsimError:
        narrow = captured.narrowed((inputs, keywords))
        while narrow is not None:
            if _belongs(plan, narrow):
                return narrow, settings
            narrow = narrow.narrowed((inputs, keywords))
        # Bytes are read from a running step: memory that a thread frees late may have been counted.
        # Ranks agree on what they read, so that all of them measure a second time, or none.
        captured = _capture(plan, model, inputs, keywords, settings)
        _check_belongs(plan, captured)
    return captured, settings


def _capture(
    plan: Plan,
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
) -> CapturedStep:
    captured = capture_step(model, inputs, keywords, settings)
    if plan.setting.step is None:
        return captured
    # The same optimizer state and other bytes that were counted when the plan was made.
    return captured.with_added(plan.setting.step.added_bytes)


def _links(plan: Plan, level: str) -> dict[str, Any]:
    # Blocks planned with a link count their input as static, whether anything is copied or not.
    offloading = offloading_of(plan)
    if level == "block":
        offloading = plan.setting.link
    if offloading is None:
        return {"offload": None}
    return {"offload": (offloading.d2h, offloading.h2d), "host_bytes": offloading.host_bytes}


def _belongs(plan: Plan, captured: CapturedStep) -> bool:
    try:
        _check_belongs(plan, captured)
    except SchedsimError:
        return False
    return True


def _check_belongs(plan: Plan, captured: CapturedStep) -> None:
    """Refuse a plan of another step; differences between machines are allowed where they fit."""
    workload = captured.workload
    same = plan.workload.content_hash == workload_hash(workload)
    step = plan.setting.step
    same = same or (step is not None and step.structure == captured.structure_hash)
    differs = _differences(plan, captured)
    if not same or differs:
        what = "; ".join(differs) or "its tensors have other sizes"
        raise SchedsimError(
            f"the plan of {plan.workload.name} is not of this step of {workload.name}: {what}",
            hint="apply it to the model, inputs and loss that it was made for, or plan again",
        )


def _differences(plan: Plan, captured: CapturedStep) -> list[str]:
    assert plan.schedule is not None
    workload = captured.workload
    mine, its = set(workload.op_names), set(plan.schedule.names)
    if plan.setting.copies is not None:
        mine |= {name for name in its if parse_copy(name) is not None}
    found = []
    if extra := [name for name in plan.schedule.names if name not in mine]:
        found.append(f"the plan runs {extra[0]!r}, which the model has not")
    if missing := [name for name in workload.op_names if name not in its]:
        found.append(f"the model has {missing[0]!r}, which the plan does not run")
    if plan.static_bytes != workload.static_bytes:
        found.append(
            f"static bytes are {format_bytes(workload.static_bytes)}, "
            f"in the plan {format_bytes(plan.static_bytes)}"
        )
    if found:
        return found
    try:
        peak = plan.simulate(workload).peak_bytes
    except InvalidScheduleError as error:
        return [str(error)]
    if peak > plan.budget_bytes:
        found.append(
            f"its schedule takes {format_bytes(peak)} here, over its budget of "
            f"{format_bytes(plan.budget_bytes)}"
        )
    return found
