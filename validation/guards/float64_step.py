"""The plain step in float64: which of two steps that round differently is the more exact one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_private.pytrees import tree_map

Step = Callable[..., Tensor]


class Float64Step:
    """The results of the plain step in float64, computed when the first of them is asked for.

    Some steps have results that rounding moves far: an input of a ReLU that is zero but for
    rounding opens the gate in one order of additions and closes it in another. Where two steps
    in float32 differ by more than rounding should, the step in float64 tells which one is off.

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
        that were asked for and accepted, as shares of the largest entry.
    """

    def __init__(self, run: Callable[[], Mapping[str, Tensor]]) -> None:
        self._run = run
        self._results: Mapping[str, Tensor] | None = None
        self.accepted = 0
        self.planned_off = self.plain_off = 0.0

    def accepts(
        self,
        name: str,
        plain: Tensor,
        planned: Tensor,
        distance: Callable[[Tensor, Tensor], float],
        tolerance: float,
    ) -> bool:
        """Whether the result `planned` is as exact as `plain`, or within `tolerance` of float64.

        Parameters
        ----------
        name
            The result's.
        distance
            Of two tensors, as a share of the largest entry.
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
        of_plain, of_planned = distance(exact, plain), distance(exact, planned)
        if not of_planned <= max(of_plain, tolerance):
            return False
        self.accepted += 1
        self.planned_off = max(self.planned_off, of_planned)
        self.plain_off = max(self.plain_off, of_plain)
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


def _eps(tensor: Tensor) -> float:
    floating = tensor.is_floating_point() or tensor.is_complex()
    return float(torch.finfo(tensor.dtype).eps) if floating else 0.0
