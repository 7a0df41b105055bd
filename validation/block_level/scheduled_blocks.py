"""A model that trains by a schedule: an ordinary module whose output is the loss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import UnsupportedError

from ..first_order import first_order
from ..ranks.ranks import ALONE
from ..torch_private.graph_tasks import goes_to_all_leaves
from ..torch_private.module_tables import gradient_hooks
from ..torch_private.pytrees import tree_leaves
from .autograd_ends import ANCHOR
from .block_program import BlockProgram
from .first_conditions import kept_buffer_bytes
from .parts import OtherPath, StepInputs
from .repeated_forward import RandomState
from .runtime import BlockStep, Observer, StepLayout
from .transfers import Mover


def _told(backward: Callable[..., Any]) -> Any:
    """Let an error of a backward reach the ranks that run the same schedule."""

    @functools.wraps(backward)
    def watched(ctx: Any, gradient: Tensor) -> Any:
        with ctx.step.ranks.running("run a step"):
            return backward(ctx, gradient)

    return watched


class _Scheduled(torch.autograd.Function):
    """The whole step as one node of autograd; gradients of parameters are added inside of it."""

    @staticmethod
    def forward(ctx: Any, step: BlockStep, anchor: Tensor, _asked: Tensor | None) -> Tensor:
        ctx.step = step
        return step.forward()

    @staticmethod
    @_told
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if not goes_to_all_leaves():
            raise UnsupportedError(
                "torch.autograd.grad, and backward(inputs=...), ask a schedule of blocks for "
                "gradients that it adds to the parameters' own",
                hint="call backward() and read .grad, or level='op'",
            )
        ctx.step.backward(gradient)
        return None, None, None


class ScheduledBlocks(nn.Module):
    """``module(*inputs)`` gives the loss; ``backward`` on the loss runs the rest of the schedule.

    Parameters are shared with the model. Without gradients (under no_grad), the model itself is
    called.

    Attributes
    ----------
    model : Module
    loss : callable or None
        It may be replaced between steps, for other targets.
    run_counts : dict
        Op name -> how often it ran in the last step.
    observer : Observer or None
        It is told of every run.
    ranks : Ranks
        Those that run the same schedule, where running the model is a collective of theirs: an
        error of one reaches all.
    mover : Mover or None
        For a schedule with copies: its host memory is ``mover.pool``.
    """

    def __init__(self, model: nn.Module, layout: StepLayout, program: BlockProgram) -> None:
        super().__init__()
        self.model = model
        self.loss: Callable[..., Tensor] | None = layout.loss
        self.run_counts: dict[str, int] = {}
        self.observer: Observer | None = None
        self.ranks = ALONE
        self._layout, self._program = layout, program
        self.mover: Mover | None = None
        if program.has_copies:
            self.mover = Mover(next(model.parameters()).device)

    @property
    def run_names(self) -> list[str]:
        """The ops of the schedule, in run order."""
        return [run.name for run in self._program.runs]

    @property
    def gathering(self) -> str:
        """The sharded parameters that the schedule gathers, in words; empty without sharding."""
        sharding = self._layout.sharding
        return "" if sharding is None else sharding.note(self._program)

    @property
    def replay_bytes(self) -> int:
        """Most bytes of the buffers that blocks change, kept for those that run again.

        The chain does not count them: at worst, they are added to its peak.
        """
        again = {run.index for run in self._program.runs if run.kind == "F" and not run.first}
        return kept_buffer_bytes(self._layout.state[index] for index in again)

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss of one step on `inputs`, which are those that the model takes."""
        if not torch.is_grad_enabled():
            return self._plain(inputs, keywords)
        with self.ranks.telling("run a step"):
            self.check(inputs, keywords)
        given = split_inputs(inputs, keywords, self._layout.num_extra)
        layout = replace(self._layout, loss=self.loss)
        step = BlockStep(layout, self._program, given, self.observer, self.mover)
        step.ranks = self.ranks
        self.run_counts = step.counts
        generators = RandomState.now(layout.devices)
        try:
            with self.ranks.running("run a step"):
                loss: Tensor = _Scheduled.apply(step, ANCHOR, self._asked())  # type: ignore[no-untyped-call]
        except OtherPath:
            generators.restore()  # the caller runs the step otherwise
            raise
        return loss

    def check(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Refuse inputs that want gradients, and gradients that would not be reduced."""
        if any(isinstance(x, Tensor) and x.requires_grad for x in tree_leaves((inputs, keywords))):
            raise UnsupportedError(
                "an input requires a gradient, which a schedule does not give",
                hint="detach it, or make what produces it part of the model",
            )
        if self._layout.sharding is not None:
            self._layout.sharding.check()

    def _asked(self) -> Tensor | None:
        """A parameter that reveals a call of `torch.autograd.grad`.

        The parameter gets no gradient here, so that none of its hooks may run; hooks of ranks
        cannot be seen.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return None
        trained = (p for p in self.model.parameters() if p.requires_grad and not gradient_hooks(p))
        return next(trained, None)

    def _plain(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
        return plain_loss(self.model, self.loss, inputs, keywords, self._layout.num_extra)


def plain_loss(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    num_extra: int = 0,
) -> Tensor:
    """The loss of the model itself, without a schedule."""
    given = split_inputs(inputs, keywords, num_extra)
    out = model(*given.arguments, **given.keywords)
    if loss is None:
        return loss_of(out)
    return loss(out, *given.extra)


def split_inputs(
    inputs: tuple[Any, ...], keywords: Mapping[str, Any], num_extra: int
) -> StepInputs:
    """The inputs of a step, the last `num_extra` of which are the loss's own."""
    own = len(inputs) - num_extra
    return StepInputs(inputs[:own], keywords, inputs[own:])


def loss_of(out: Any) -> Tensor:
    """The scalar in the output of a model that computes its own loss."""
    found = out if isinstance(out, Tensor) else getattr(out, "loss", None)
    if not isinstance(found, Tensor):
        raise UnsupportedError(
            f"the model returns a {type(out).__name__} without a loss, and no loss is given",
            hint="a loss that makes a scalar of the output, as loss=lambda output: output"
            + ('["loss"]' if isinstance(out, dict) else "[0]"),
        )
    return found
