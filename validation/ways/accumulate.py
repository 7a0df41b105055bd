"""A step of micro-batches as one call: a loss whose gradients are those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from schedsim.errors import SchedsimError

from ..autocasts import backward_autocast
from ..op_level.scheduled_ops import ScheduledOps
from .input_gradients import InputGradients, differentiable
from .microbatch import MicroBatch, Splitter, check_hooks, combined

Runner = Callable[[MicroBatch], Callable[..., Tensor]]


class AccumulatedStep(nn.Module):
    """``module(*inputs)`` runs forward and backward of all micro-batches, and gives the loss.

    ``backward()`` on that loss hands over the gradients, which until then are stored in buffers of
    the module; so they may be zeroed, scaled and clipped around it like those of any loss. Each
    step starts from the gradient that the loss got in the step before (1 in the first step), so
    that a loss scale (`torch.amp.GradScaler`) also acts inside of the micro-batches.

    Attributes
    ----------
    run_counts : dict
        Op -> number of runs in the last micro-batch.
    """

    def __init__(self, model: nn.Module, splitter: Splitter, runner: Runner) -> None:
        super().__init__()
        self._splitter, self._runner = splitter, runner
        self._model = [model]  # in a list: its parameters are not this module's
        self._seed: Tensor | None = None
        self._last: Any = None

    @property
    def run_counts(self) -> dict[str, int]:
        """How often each part ran in the last micro-batch."""
        return dict(self._last.run_counts) if self._last is not None else {}

    def observe(self, hook: Any) -> None:
        """Call ``hook(run)`` before each run of every micro-batch."""
        self._hook = hook

    def forward(self, *inputs: Any, **keywords: Any) -> Tensor:
        """The loss of the whole batch."""
        model = self._model[0]
        check_hooks(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        given = differentiable((inputs, keywords))
        apply: Any = _Handed.apply
        loss: Tensor = apply(self, inputs, keywords, trained, *trained, *given)
        return loss

    def run(
        self, inputs: tuple[Any, ...], keywords: dict[str, Any], trained: list[nn.Parameter]
    ) -> tuple[Tensor, list[Tensor | None], Tensor]:
        """(loss, gradients, the gradient of the loss to which these gradients belong).

        Gradients are those of the parameters, then those of inputs that need one.
        """
        own = [p.grad for p in trained]
        of_inputs = InputGradients(inputs, keywords)
        losses: list[Tensor] = []
        sums: dict[nn.Parameter, Tensor] = {}
        seed = self._seed
        try:
            for p in trained:
                p.grad = None
            parts = self._splitter.parts(inputs, keywords)
            for each in parts:
                part = of_inputs.begin(each)
                with torch.enable_grad(), self._splitter.targets_of(part):
                    self._last = self._runner(part)
                    if isinstance(self._last, ScheduledOps):
                        self._last.sums = sums
                        for p in self._last.summed:
                            if p not in sums:
                                sums[p] = _nothing(p)
                    loss = self._last(*part.inputs, **part.keywords)
                if seed is None:
                    seed = torch.ones_like(loss)
                with backward_autocast().entered():
                    loss.backward((seed * part.weight).to(loss.dtype))
                losses.append(loss.detach().clone())  # some losses share the storage of all terms
                del loss
                of_inputs.end(part)
            gradients = [*(_total(sums.pop(p, None), p.grad) for p in trained), *of_inputs.whole]
        finally:
            if isinstance(self._last, ScheduledOps):
                self._last.sums = {}
            for p, gradient in zip(trained, own, strict=True):
                p.grad = gradient
        assert seed is not None
        return combined(parts, losses), gradients, seed


def _nothing(parameter: Tensor) -> Tensor:
    """A sum of no gradients: minus zero, which changes no bit of what is added to it."""
    zero = complex(-0.0, -0.0) if parameter.is_complex() else -0.0
    return torch.full_like(parameter, zero, requires_grad=False)


def _total(added: Tensor | None, own: Tensor | None) -> Tensor | None:
    """The gradient of a parameter that some parts add to a sum, and others give to autograd."""
    if added is None or own is None:
        return own if added is None else added
    return added.add_(own)


class _Handed(torch.autograd.Function):
    """Returns gradients that have already been computed as the gradients of the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        step: AccumulatedStep,
        inputs: tuple[Any, ...],
        keywords: dict[str, Any],
        trained: list[nn.Parameter],
        *_: Tensor,
    ) -> Tensor:
        loss, ctx.gradients, ctx.seed = step.run(inputs, keywords, trained)
        ctx.step = step
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise SchedsimError(
                "the gradients of this loss were handed over already",
                hint="call the module again, and do not pass retain_graph",
            )
        factor = gradient / ctx.seed
        for kept in gradients:
            if kept is not None:
                kept.mul_(factor.to(kept.dtype))  # by 1 in most steps, which changes no bit
        ctx.step._seed = gradient.detach().clone()
        return (None, None, None, None, *gradients)
