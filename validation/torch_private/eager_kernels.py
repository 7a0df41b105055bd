"""Ops that torch takes apart while it traces though a plain step runs one kernel for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey

_PLACES = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextmanager
def eager_kernels(inputs: Iterable[Any]) -> Iterator[None]:
    """Within a trace, keep interpolation as one op, with the bits and the bytes of its own kernel.

    torch's Python dispatcher has rules that turn each into a dozen indexings and products. Their
    sums have another order, and they save what the kernel does not. Where an input has an open
    size, the rules stay: the kernels' own ones would fix that size.
    """
    if any(_has_open_size(value) for value in inputs):
        yield
        return
    before: list[tuple[Any, dict[Any, Any]]] = []
    for op in _interpolations():
        before.append(
            (op, {place: op.py_kernels.pop(place) for place in _PLACES if place in op.py_kernels})
        )
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, rules in before:
            op.py_kernels.update(rules)
            op._dispatch_cache.clear()


def _has_open_size(value: Any) -> bool:
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


@cache
def _interpolations() -> tuple[Any, ...]:
    """The overloads of ``aten::upsample_*`` that have a rule."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or not packet.lstrip("_").startswith("upsample_"):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is not None and any(place in op.py_kernels for place in _PLACES):
            found.append(op)
    return tuple(found)
