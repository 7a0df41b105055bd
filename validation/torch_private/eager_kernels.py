"""Ops for which torch traces something else than what a plain step runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey

from .folded_products import folded_products

_PLACES = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextmanager
def eager_kernels(inputs: Iterable[Any]) -> Iterator[None]:
    """Within a trace, keep some ops in one piece, and dropout that drops nothing as none.

    torch's Python dispatcher has rules that turn each interpolation into a dozen indexings and
    products, and shrinking and losses with a margin into comparisons and selections. Their sums
    have another order than the kernel's, and they save what it does not. Where an input has an open
    size, these rules stay: the kernels' own ones would fix that size.

    Its rule for dropout, before torch 2.15, copies the input where p is 0 and in evaluation mode. A
    plain step is given the input itself: it takes no bytes, and code that writes into the result
    writes into the input. Where p is 1 a plain step multiplies by zero, so that an infinity becomes
    a NaN, and the rule gives zeros. Products of batches are folded as in a plain step.
    """
    changed: list[tuple[Any, dict[Any, Any]]] = [(torch.ops.aten.dropout.default, _DROPOUT)]
    if not any(_has_open_size(value) for value in inputs):
        changed += [(op, {}) for op in _taken_apart()]
    before: list[tuple[Any, dict[Any, Any]]] = []
    for op, rules in changed:
        places = [place for place in _PLACES if place in op.py_kernels]
        before.append((op, {place: op.py_kernels.pop(place) for place in places}))
        op.py_kernels.update({place: rules[place] for place in places if place in rules})
        op._dispatch_cache.clear()
    try:
        with folded_products():
            yield
    finally:
        for op, rules in before:
            op.py_kernels.update(rules)
            op._dispatch_cache.clear()


def _dropout(input: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """The rule for dropout; a call may name its arguments, which are torch's."""
    if not train or p == 0 or _is_empty(input):
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    if input.is_complex():  # torch's rule, from 2.15 on, draws other numbers than the kernels
        return input * torch.empty_like(input.real).bernoulli_(1 - p).div_(1 - p)
    dropped: torch.Tensor = torch.ops.aten.native_dropout(input, p, train)[0]
    return dropped


def _is_empty(given: torch.Tensor) -> bool:
    return any(not isinstance(n, torch.SymInt) and n == 0 for n in given.shape)


_DROPOUT = dict.fromkeys(_PLACES, _dropout)


def _has_open_size(value: Any) -> bool:
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


_NAMES = ("hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")


@cache
def _taken_apart() -> tuple[Any, ...]:
    """The overloads of ``aten::upsample_*``, and of `_NAMES`, that have a rule."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        is_asked = packet in _NAMES or packet.lstrip("_").startswith("upsample_")
        if space != "aten" or not is_asked:
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is not None and any(place in op.py_kernels for place in _PLACES):
            found.append(op)
    return tuple(found)
