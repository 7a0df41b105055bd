"""Comparison of a planned step with the plain one: both run, within the memory of the planned."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Mapping
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
from ..guards.differential import Both, Difference, NotCompared
from ..guards.float64_step import Float64Step, in_float64
from ..guards.plan_variants import PlainStepWarning
from ..user_warnings import warn_user
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

    The comparison takes the time of two steps, and the memory of the planned one; all state is
    restored afterwards.
    """
    if settings.check == "never":
        return "not compared with the plain step: check='never'", None
    if not has_values(next(model.parameters()).device):
        return "not compared with the plain step: the dry device computes no values", None
    if (why := _no_room(model, planned)) is not None:
        return f"not compared with the plain step: {why}", None
    captured, loss = planned.captured, settings.loss
    plain = _plain_step(model, loss, len(inputs))
    rounded = bool(read_chunks(settings.chunk)) or captured.num_parts > 1 or settings.compile
    recorded = captured.recorded
    settled = recorded.settled() if recorded and captured.level == "op" else nullcontext()
    memory = PlainMemory(lambda: planned.store_all_bytes, next(model.parameters()).device)
    exact = None
    if settings.compile and captured.level == "op":
        exact = memory.float64_step(
            _in_wide_numbers(model, loss, inputs, keywords),
            _by_torch_compile(model, loss, inputs, keywords),
        )
    try:
        with settled:
            difference = Both(model, loss, recorded, takes_more=memory.take).difference(
                plain, planned.module, inputs, keywords, rounded=rounded, exact=exact
            )
    except (NotCompared, torch.OutOfMemoryError, OSError) as error:
        text = " ".join(str(error).split())[:200]
        return f"not compared with the plain step: {text}", None
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
        if exact.compiled_off:
            line += f", and torch.compile's own are up to {exact.compiled_off:.1e} from it"
    return line, None


class PlainMemory:
    """The memory of the plain step, which a comparison takes only where nothing else can tell.

    Parameters
    ----------
    step_bytes
        Gives those of the plain step: a new graph is traced as it is compared.
    say
        Says a line, before the memory is taken.
    """

    def __init__(
        self,
        step_bytes: Callable[[], int],
        device: torch.device,
        say: Callable[[str], None] = lambda line: warn_user(line, PlainStepWarning),
    ) -> None:
        self._step_bytes, self._device, self._say = step_bytes, device, say
        self._is_told = False

    def take(self, why: str) -> None:
        """Say that the plain step runs with what it saves in the device's memory, and `why`.

        Raises
        ------
        NotCompared
            There is no room for that.
        """
        step_bytes = self._step_bytes()
        no_room = no_room_for(step_bytes, self._device)
        if no_room is not None:
            raise NotCompared(no_room)
        self._tell(f"the plain step's memory ({format_bytes(step_bytes)})", why)

    def float64_step(
        self,
        run: Callable[[int | None], Mapping[str, Tensor]],
        run_compiled: Callable[[], Mapping[str, Tensor]],
    ) -> Float64Step:
        """The plain step in float64 by `run`, which a line announces; of no use without room.

        torch.compile's own step, by `run_compiled`, takes no more than that.
        """

        def told(nudge: int | None) -> Mapping[str, Tensor]:
            most = _FLOAT64 * self._step_bytes()
            if (no_room := no_room_for(most, self._device)) is not None:
                raise NotCompared(no_room)
            why = "the step differs by more than rounding, and float64 tells which one is off"
            self._tell(f"up to {format_bytes(most)}", why)
            return run(nudge)

        return Float64Step(told, run_compiled)

    def _tell(self, taken: str, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(f"a comparison with the plain step takes {taken}, not the budget's: {why}")


def _plain_step(
    model: nn.Module, loss: Callable[..., Tensor] | None, num_inputs: int
) -> Callable[..., Tensor]:
    num_extra = count_extra_inputs(model, loss, num_inputs)

    def plain(*inputs: Any, **keywords: Any) -> Tensor:
        return plain_loss(model, loss, inputs, keywords, num_extra)

    return plain


def _in_wide_numbers(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Callable[[int | None], Mapping[str, Tensor]]:
    def results(nudge: int | None) -> Mapping[str, Tensor]:
        wide, wide_loss = in_float64((model, loss), nudge)
        plain = _plain_step(wide, wide_loss, len(inputs))
        given = in_float64((inputs, dict(keywords)), nudge)
        return Both(wide, wide_loss, None).results(plain, *given)

    return results


def _by_torch_compile(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> Callable[[], Mapping[str, Tensor]]:
    def results() -> Mapping[str, Tensor]:
        own, own_loss = copy.deepcopy((model, loss))
        plain = _plain_step(own, own_loss, len(inputs))
        return Both(own, own_loss, None).compiled_results(plain, inputs, keywords)

    return results


def _no_room(model: nn.Module, planned: PlannedStep) -> str | None:
    """Why the plain step does not run; ``None`` where it can."""
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if group and torch.distributed.get_world_size() > 1 and planned.captured.level == "block":
        return "the ranks would have to run it together"
    return no_room_elsewhere(planned.store_all_bytes, next(model.parameters()).device)


def no_room_for(step_bytes: int, device: torch.device) -> str | None:
    """Why `device` has no room for a step of `step_bytes`; ``None`` where it fits."""
    if device.type == "cuda":
        room, _ = torch.cuda.mem_get_info(device)
        room += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        room = _host_bytes()
    return f"that takes {format_bytes(step_bytes)}" if step_bytes > room else None


def no_room_elsewhere(step_bytes: int, device: torch.device) -> str | None:
    """Why what a plain step saves has no place outside of `device`; ``None`` where it has.

    That is the host's memory, and for a step on the host a temporary file.
    """
    folder = tempfile.gettempdir()
    is_on_host = device.type == "cpu"
    room = shutil.disk_usage(folder).free if is_on_host else _host_bytes()
    if step_bytes <= room:
        return None
    where = folder if is_on_host else "the host's memory"
    return f"what it saves takes {format_bytes(step_bytes)}, for which {where} has no room"


def _host_bytes() -> int:
    return int(SHARE_OF_MEMORY["cpu"] * device_memory_bytes(torch.device("cpu")))
