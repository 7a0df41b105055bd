"""The autograd functions at the two ends of a block: where tensors go in, and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..torch_private.module_tables import gradient_hooks
from ..torch_private.storage_refs import share_of
from .bundles import Bundle, BundleState, leaves_of

ANCHOR = torch.empty((), requires_grad=True)
"""Makes the outputs of our autograd functions require a gradient; it never gets one itself."""

START = torch.ones(())
"""The gradient that starts a block's backward: its value does not matter (see `Outlet`)."""


class Gate(torch.autograd.Function):
    """Passes tensors into a block, and their gradients out of the block into a cell.

    No leaf tensor is involved, because the graph would keep it alive.
    """

    @staticmethod
    def forward(ctx: Any, cell: BundleState, value: int, anchor: Tensor, *tensors: Tensor) -> Any:
        ctx.cell, ctx.value = cell, value
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.cell.gradients[ctx.value] = [g if g is None else compact(g) for g in gradients]
        return (None, None, None, *(None for _ in gradients))


class Outlet(torch.autograd.Function):
    """The end of a block, where the gradients of its output go in.

    It takes them from the cell, so that none is held once the block has used it. `backward` holds
    the gradients that it is called with until it is over, as a plain step does not. The gradients
    that later blocks have made for parameters of this one go in, too: so autograd adds to them in
    place, as it does in a plain step, and does not make a sum of its own first.
    """

    @staticmethod
    def forward(ctx: Any, cell: BundleState, *outputs: Tensor) -> Tensor:
        ctx.cell = cell
        return START.detach()

    @staticmethod
    def backward(ctx: Any, _start: Tensor) -> Any:
        given, ctx.cell.given = ctx.cell.given, []
        return (None, *given, *(_taken(p, ctx.cell.resident) for p in ctx.cell.summing))


def _taken(parameter: nn.Parameter, resident: frozenset[int]) -> Tensor | None:
    """The gradient of a parameter, which it has no longer; ``None`` for one to leave alone."""
    gradient = parameter.grad
    if gradient is None or not _may_take(parameter, resident):
        return None
    parameter.grad = None
    return gradient


def _may_take(parameter: nn.Parameter, resident: frozenset[int]) -> bool:
    """Whether the gradient of a parameter may go through a block's outlet.

    Left alone are gradients from before the step, and those that somebody watches, as the hooks of
    other ranks may, which cannot be seen. Such a parameter must not hang on the outlet at all: its
    hooks would be called for a block that makes no gradient for it.
    """
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not (id(parameter) in resident or gradient_hooks(parameter) or ranks)


def bundle_of(out: Any, cell: BundleState) -> Bundle:
    """What the forward that made `out` has kept, with an outlet where a gradient flows."""
    leaves = leaves_of(out)
    takes = [i for i, t in enumerate(leaves) if isinstance(t, Tensor) and t.requires_grad]
    if not takes:
        return Bundle(None, (), cell)
    apply: Any = Outlet.apply
    with torch.enable_grad():
        cell.summing = tuple(p for p in cell.summing if _may_take(p, cell.resident))
        end = apply(cell, *(leaves[i] for i in takes), *cell.summing)
    return Bundle(get_gradient_edge(end), tuple(takes), cell)


def compact(tensor: Tensor) -> Tensor:
    """`tensor`, copied if it is a piece of a larger storage that it would keep alive.

    The gradient of a concatenated tensor is a view of the whole gradient, and the gradient of a
    mean over differences may share the storage of the differences.
    """
    share = share_of(tensor)
    own = share.numel() * share.element_size()
    return tensor if share.untyped_storage().nbytes() <= own else tensor.clone()
