"""Where products of a batch are one product of matrices: a plain step's choice, within a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes

_RULES: Any = torch._decomp.decompositions
_OF_TORCH = _RULES.should_fold


@contextmanager
def folded_products() -> Iterator[None]:
    """Within a trace, ``aten::matmul`` folds a batch where a plain step does.

    A product with a vector or a matrix folds the other's batch into the rows of one matrix, or
    leaves it a batch, by strides and by who needs a gradient. torch's own rule for a trace chooses
    otherwise for some strides, as of a batch of one behind a transposition; sums then have another
    order. (torch's kernel itself cannot be asked for the whole product: it takes a tensor that is
    being traced for one of a subclass, and folds more.)
    """
    _RULES.should_fold = _should_fold
    try:
        yield
    finally:
        _RULES.should_fold = _OF_TORCH


def _should_fold(tensor1: torch.Tensor, tensor2: torch.Tensor, is_out: bool) -> bool:
    few, many = sorted((tensor1.dim(), tensor2.dim()))
    if few > 2 or many < 3:
        return False
    if not all(map(_is_known, (*tensor1.shape, *tensor2.shape))):
        return bool(_OF_TORCH(tensor1, tensor2, is_out))
    smaller = tensor2 if tensor2.dim() == few else tensor1
    return _folds(_layout(tensor1), _layout(tensor2), smaller.requires_grad and not is_out)


Layout = tuple[tuple[int, ...], tuple[int, ...]]


def _layout(given: torch.Tensor) -> Layout:
    """Sizes and strides, open ones as they were traced."""
    sizes, strides = (tuple(map(_as_traced, them)) for them in (given.shape, given.stride()))
    return sizes, strides


def _is_known(size: int | torch.SymInt) -> bool:
    """Whether a size follows from those of the inputs; others depend on data."""
    return isinstance(size, int) or size.node.hint is not None


def _as_traced(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


@lru_cache(maxsize=4096)
def _folds(first: Layout, second: Layout, smaller_needs: bool) -> bool:
    """Whether torch's kernel folds tensors of these layouts: tried on tensors without memory.

    The larger tensor's need of a gradient does not matter, and lets the result tell how it came.
    """
    with _disable_current_modes(), no_python_dispatcher(), torch.enable_grad():
        made = [torch.empty_strided(*layout, device="meta") for layout in (first, second)]
        few, many = sorted(made, key=torch.Tensor.dim)
        few.requires_grad_(smaller_needs)
        many.requires_grad_()
        return not _is_of_a_batch(torch.matmul(*made).grad_fn)


def _is_of_a_batch(node: Any) -> bool:
    """Whether a product of batches is in the graph behind `node`."""
    if node is None:
        return False
    if node.name().startswith("Bmm"):
        return True
    return any(_is_of_a_batch(before) for before, _ in node.next_functions)
