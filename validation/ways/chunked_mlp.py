"""Feed-forward layers over chunks of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..autocasts import Autocast
from ..block_level.repeated_forward import RandomState

TokenWise = Callable[[Tensor], Tensor]


def in_chunks(
    function: TokenWise, x: Tensor, parameters: tuple[Tensor, ...], num_chunks: int, unrolled: bool
) -> Tensor:
    """``function(x)`` over parts of the tokens, for a function that acts on each token alone.

    Parameters
    ----------
    x
        ``(..., width)``; the dimensions before the last count the tokens.
    parameters
        Parameters of `function` that get gradients.
    unrolled
        Whether to leave to the planner, which sees the ops of all parts, what each part keeps;
        otherwise only `x` is kept, and a part is recomputed when its backward comes.

    Notes
    -----
    Rows go through matrix products in smaller groups: the same bits with most libraries. Gradients
    of parameters are sums over parts: equal within rounding. Dropout draws other numbers.
    """
    flat = x.reshape(-1, x.shape[-1])
    if unrolled:
        done = torch.cat([function(part) for part in flat.tensor_split(num_chunks)])
    else:
        apply: Any = _Recomputed.apply
        done = apply(function, num_chunks, flat, *parameters)
    return done.reshape(*x.shape[:-1], done.shape[-1])


class _Recomputed(torch.autograd.Function):
    """Keeps its input; backward runs each part forward again, with the same random numbers."""

    @staticmethod
    def forward(
        ctx: Any, function: TokenWise, num_chunks: int, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        devices = ("cpu",) if x.device.type == "cpu" else ("cpu", str(x.device))
        before = RandomState.now(devices)
        done = torch.cat([function(part) for part in x.tensor_split(num_chunks)])
        ctx.function, ctx.num_chunks, ctx.devices = function, num_chunks, devices
        ctx.random = None if RandomState.now(devices) == before else before
        ctx.autocast = Autocast.now()
        ctx.parameters = parameters  # not saved: saved tensors would come back as other tensors
        ctx.save_for_backward(x)
        return done

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,), parameters = ctx.saved_tensors, ctx.parameters
        trained = [p for p in parameters if p.requires_grad]
        sums: list[Tensor | None] = [None] * len(trained)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        now = RandomState.now(ctx.devices) if ctx.random is not None else None
        if ctx.random is not None:
            ctx.random.restore()
        start = 0
        for part in x.tensor_split(ctx.num_chunks):
            rows = slice(start, start + part.shape[0])
            start = rows.stop
            given = part.detach().requires_grad_()
            with torch.enable_grad(), ctx.autocast.entered():
                done = ctx.function(given)
            found = torch.autograd.grad(done, [given, *trained], gradient[rows], allow_unused=True)
            if grad_x is not None:
                grad_x[rows] = found[0]
            for i, more in enumerate(found[1:]):
                had = sums[i]
                if more is not None:
                    sums[i] = more if had is None else had.add_(more)
            del found, done, given
        if now is not None:
            now.restore()
        each = iter(sums)
        return (None, None, grad_x, *(next(each) if p.requires_grad else None for p in parameters))
