"""Tensors that are there anyway, on which ops are measured: copies of them would take their memory.

A table of embeddings, or the adjacency matrix of a graph, may be most of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ..capture.program import Call, Program
from ..torch_private.op_modes import schema_of

_LEAST_BYTES = 1 << 16
"""Smaller ones are made up."""
_lent: ContextVar[tuple[object, ...]] = ContextVar("_lent", default=())


@contextmanager
def lending(tensors: Iterable[object]) -> Iterator[None]:
    """Let ops that are measured in the block read the large ones among `tensors`.

    Most blocks measure nothing: the tensors are looked at where an op asks for them.
    """
    token = _lent.set(tuple(tensors))
    try:
        yield
    finally:
        _lent.reset(token)


def _large() -> Iterator[Tensor]:
    """Those of the lent tensors that an op may read."""
    return (t.detach() for t in _lent.get() if isinstance(t, Tensor) and _is_large(t))


def _is_large(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and tensor.is_floating_point() and tensor.nbytes >= _LEAST_BYTES


class Lenders:
    """The tensors that `call` may read in the place of made-up ones, each for one argument.

    None for an op that writes to its arguments, or may. Kernels that write undeclared, as those of
    batch norms, write to vectors, for which none is lent.
    """

    def __init__(self, program: Program, call: Call) -> None:
        schema = schema_of(call.target)
        reads = schema is not None and not schema.is_mutable
        self._program, self._left = program, list(_large()) if reads else []

    def take(self, value: int) -> Tensor | None:
        """A tensor in the form of `value` whose memory has just its size; ``None`` for none."""
        v = self._program.values[value]
        known = self._program.storages[v.storage].kind != "computed"
        if len(v.shape) < 2 or not known or not math.prod(v.shape):
            return None
        span = 1 + sum((n - 1) * s for n, s in zip(v.shape, v.stride, strict=True))
        for i, lent in enumerate(self._left):
            fits = lent.untyped_storage().nbytes() == span * lent.element_size()
            if fits and lent.dtype == v.dtype and lent.device.type == v.device.type:
                return self._left.pop(i).as_strided(v.shape, v.stride, 0)
        return None
