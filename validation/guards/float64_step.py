"""The plain step in float64: which of two steps that round differently is the more exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_private.pytrees import tree_map

_ZERO = 1e-3
"""A result that is this share of the plain step's error in float64 is zero."""
_ORDERS = 8
"""Times the plain step's rounding that another order of additions may leave of zero."""


class Float64Step:
    """The results of the plain step in float64, computed when the first of them is asked for.

    Some steps have results that rounding moves far: an input of a ReLU that is zero but for
    rounding opens the gate in one order of additions and closes it in another. Where two steps
    in float32 differ by more than rounding should, the step in float64 tells which one is off.
    Other results are zero but for rounding, as is the running mean behind a second normalisation:
    the plain step has no digits of them, and another order of additions gives others.

    Parameters
    ----------
    run
        Runs the step and returns its results by name, as float64 tensors.

    Attributes
    ----------
    accepted
        Number of results that were accepted.
    planned_off, plain_off
        The largest distances of the planned and of the plain step from float64 among the results
        that were asked for and accepted, as shares of the largest entry. Results that are zero but
        for rounding have no such share.
    """

    def __init__(self, run: Callable[[], Mapping[str, Tensor]]) -> None:
        self._run = run
        self._results: Mapping[str, Tensor] | None = None
        self.accepted = 0
        self.planned_off = self.plain_off = 0.0

    def accepts(self, name: str, plain: Tensor, planned: Tensor, tolerance: float) -> bool:
        """Whether the result `planned` is as exact as `plain`, or within `tolerance` of float64.

        Parameters
        ----------
        name
            The result's.
        tolerance
            A share of the largest entry.
        """
        if self._results is None:
            try:
                self._results = self._run()
            except Exception:  # a model may refuse numbers in float64: then nothing is accepted
                self._results = {}
        exact = self._results.get(name)
        wider = exact is not None and torch.finfo(exact.dtype).eps < _eps(plain)
        if exact is None or not wider or exact.shape != plain.shape:
            return False
        # Of one scale for both: shares of each result's own largest entry would all be 1 at zero.
        largest = max(_most(exact), _most(plain))
        of_plain, of_planned = _distance(exact, plain), _distance(exact, planned)
        if not largest or not isfinite(of_plain) or not isfinite(of_planned):
            return False
        zero = _most(exact) <= _ZERO * of_plain
        if of_planned > (_ORDERS * of_plain if zero else max(of_plain, tolerance * largest)):
            return False
        self.accepted += 1
        if not zero:
            self.planned_off = max(self.planned_off, of_planned / largest)
            self.plain_off = max(self.plain_off, of_plain / largest)
        return True


def in_float64(value: Any) -> Any:
    """A copy of `value`, whose tensors and modules of floating point numbers are in float64.

    What two modules share, their copies share too.
    """
    known: dict[int, Any] = {}

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            return copy.deepcopy(leaf, known).double()
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        return leaf

    return tree_map(wide, value)


def _distance(exact: Tensor, found: Tensor) -> float:
    """The largest difference among entries that are finite; infinite if others are in each."""
    a, b = (_dense(tensor).to(exact.dtype) for tensor in (exact, found))
    if not torch.equal(a.isfinite(), b.isfinite()):
        return inf
    there = a.isfinite()
    return float((a[there] - b[there]).abs().max()) if bool(there.any()) else inf


def _most(tensor: Tensor) -> float:
    """The largest entry among those that are finite."""
    tensor = _dense(tensor)
    there = tensor[tensor.isfinite()]
    return float(there.abs().max()) if there.numel() else 0.0


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _eps(tensor: Tensor) -> float:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return float(torch.finfo(tensor.dtype).eps) if floating else 0.0
