"""A schedule of ops under torch's compiler: its two halves compiled by inductor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from schedsim.errors import SchedsimError, UnsupportedError

from ..capture.program import Program, empty_of
from ..torch_private.fake_tensors import fake_mode
from ..torch_private.joint_graphs import inductor_compiled
from .emit import Half, Halves, emit
from .random_replay import RandomReplay

if TYPE_CHECKING:
    from .scheduled_ops import ScheduledOps


def compile_schedule(module: ScheduledOps) -> ScheduledOps:
    """Make `module` run its schedule as code that inductor compiles; returns the same module.

    What is recomputed stays recomputed, and the step remains one forward and one backward function.
    The compiler fuses ops, which saves time and the tensors between them, and chooses the order of
    the remaining ops itself: **the plan's peak is no bound any more**. Gradients are those of the
    plan within rounding. Run counts are those of the schedule.

    Raises
    ------
    SchedsimError
        In the first step: the compiled backward gives other gradients than the ops.
    UnsupportedError
        The schedule repeats random ops, whose numbers only the uncompiled form replays, or the step
        updates buffers (batch norms) in the middle of it.

    Notes
    -----
    Compiling takes seconds to minutes, and needs a C++ compiler on the CPU.
    """
    captured = module._captured
    program = captured.program
    halves = emit(program, module._runs, in_place=False)
    if halves.repeated_random:
        raise UnsupportedError(
            "the schedule repeats random ops, whose numbers inductor would draw anew",
            hint="plan with a larger budget or without dropout, or run it uncompiled",
        )
    updates = [call.name for call in program.calls if call.target is torch.ops.aten.copy_.default]
    if updates:
        raise UnsupportedError(
            f"the step changes buffers on its way ({updates[0]}), which a compiled half must not",
            hint="freeze the statistics, or run the schedule uncompiled",
        )
    module._halves = _compiled(program, halves, module)
    module._observed = None
    module._is_compiled = True
    return module


def _compare(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Raise where compiled gradients are others than those of the ops, beyond rounding."""
    for mine, its in zip(found, expected, strict=True):
        if (mine - its).norm() <= 0.05 * its.norm() + 1e-6:
            continue
        raise SchedsimError(
            "the backward that inductor has compiled gives other gradients than its ops",
            hint="run the schedule uncompiled, or rematerialize(..., compile=True)",
        )


def _compiled(program: Program, halves: Halves, module: ScheduledOps) -> Halves:
    mode = fake_mode()
    counts = [0] * len(module._counts)
    runs = module._runs
    random = RandomReplay(0, "cpu")
    with mode, torch.no_grad():
        resident = [empty_of(program.values[value]) for value in halves.resident]
        outputs, carried = halves.forward.function(list(resident), counts, random, None)
        gradient = empty_of(program.values[program.tangent])
    num = len(resident)
    first = sum(counts[op] for op in set(runs))  # number of runs in the forward half

    def forward(*flat: torch.Tensor) -> Any:
        (made,), kept = halves.forward.function(list(flat), counts, random, None)
        return (made, *kept)

    def backward(*flat: torch.Tensor) -> Any:
        kept, given = list(flat[num:-1]), flat[-1]
        given_all = [given]
        found = halves.backward.function(list(flat[:num]), kept, given_all, counts, random, None)
        return tuple(found)

    quick_forward = inductor_compiled(forward, resident, mode)
    quick_backward = inductor_compiled(backward, [*resident, *carried, gradient], mode)
    del outputs, carried
    is_compared = False

    def run_forward(resident: Any, counts: list[int], random: Any, hook: Any) -> Any:
        for run in runs[:first]:
            counts[run] += 1
        made, *kept = quick_forward(list(resident))
        return [made], kept

    def run_backward(
        resident: Any,
        carried: list[Any],
        gradients: list[Any],
        counts: list[int],
        random: Any,
        hook: Any,
    ) -> Any:
        nonlocal is_compared
        for run in runs[first:]:
            counts[run] += 1
        arguments = [*resident, *carried, *gradients]
        expected = None if is_compared else backward(*arguments)
        carried.clear()
        found = list(quick_backward(arguments))
        if expected is not None:
            _compare(found, expected)
            is_compared = True
        return found

    return replace(
        halves,
        forward=Half(halves.forward.source, run_forward),
        backward=Half(halves.backward.source, run_backward),
    )
