"""Comparison of a planned step with the plain one: both run, where there is room for the plain."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.units import format_bytes

from ..block_level.block_timing import SHARE_OF_MEMORY
from ..block_level.scheduled_blocks import plain_loss
from ..capture.skeleton import count_extra_inputs
from ..dry_cuda import has_values
from ..environment import device_memory_bytes
from ..guards.differential import Both, Difference
from ..guards.float64_step import Float64Step, in_float64
from ..ways.chunk import read_chunks
from .step_planning import PlannedStep
from .step_settings import Settings

_FLOAT64 = 4
"""A step in float64 takes up to so many times the plain step's bytes, its parameters included."""


def compare(
    model: nn.Module,
    settings: Settings,
    planned: PlannedStep,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> tuple[str, Difference | None]:
    """A line on how the planned step compares with the plain one, and the difference.

    The comparison takes the time of two steps and, for a moment, the memory of the plain step; all
    state is restored afterwards.
    """
    if settings.check == "never":
        return "not compared with the plain step: check='never'", None
    if not has_values(next(model.parameters()).device):
        return "not compared with the plain step: the dry device computes no values", None
    if (why := _no_room(model, planned)) is not None:
        return f"not compared with the plain step: {why}", None
    captured, loss = planned.captured, settings.loss
    num_extra = count_extra_inputs(model, loss, len(inputs))

    def plain(*inputs: Any, **keywords: Any) -> Tensor:
        return plain_loss(model, loss, inputs, keywords, num_extra)

    rounded = bool(read_chunks(settings.chunk)) or captured.num_parts > 1 or settings.compile
    recorded = captured.recorded
    settled = recorded.settled() if recorded and captured.level == "op" else nullcontext()
    with settled:
        both = Both(model, loss, recorded)
        exact = _float64_step(model, settings, planned, inputs, keywords)
        difference = both.difference(
            plain, planned.module, inputs, keywords, rounded=rounded, exact=exact
        )
    if difference is not None:
        return f"not the plain step to the bit: {difference}", difference
    within = "within rounding" if rounded else "to the bit"
    line = f"loss, gradients, buffers and generators are the plain step's {within}"
    if exact is not None and exact.accepted:
        line += (
            f", or at most {exact.planned_off:.1e} of the largest entry from float64, where the "
            f"plain step's are up to {exact.plain_off:.1e} from it"
        )
        if exact.nudged_off:
            line += (
                f", and up to {exact.nudged_off:.1e} where its numbers are off by their last digit"
            )
    return line, None


def _float64_step(
    model: nn.Module,
    settings: Settings,
    planned: PlannedStep,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Float64Step | None:
    """The plain step in float64, for a compiled step; ``None`` if there is no room for it."""
    if not settings.compile or planned.captured.level != "op":
        return None
    if no_room_for(_FLOAT64 * planned.store_all_bytes, next(model.parameters()).device, 0):
        return None

    def results(nudge: int | None) -> Mapping[str, Tensor]:
        wide, loss = in_float64((model, settings.loss), nudge)
        num_extra = count_extra_inputs(model, settings.loss, len(inputs))

        def plain(*inputs: Any, **keywords: Any) -> Tensor:
            return plain_loss(wide, loss, inputs, keywords, num_extra)

        return Both(wide, loss, None).results(plain, *in_float64((inputs, dict(keywords)), nudge))

    return Float64Step(results)


def _no_room(model: nn.Module, planned: PlannedStep) -> str | None:
    """Why the plain step does not run; ``None`` where it fits."""
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if group and torch.distributed.get_world_size() > 1 and planned.captured.level == "block":
        return "the ranks would have to run it together"
    device = next(model.parameters()).device
    return no_room_for(planned.store_all_bytes, device, planned.plan.static_bytes)


def no_room_for(step_bytes: int, device: torch.device, resident_bytes: int) -> str | None:
    """Why a plain step of `step_bytes` does not run; ``None`` where it fits.

    Parameters
    ----------
    resident_bytes
        Bytes of the step's tensors that are already on the device.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = free + resident_bytes
    else:
        room = int(SHARE_OF_MEMORY["cpu"] * device_memory_bytes(device))
    return f"that takes {format_bytes(step_bytes)}" if step_bytes > room else None
