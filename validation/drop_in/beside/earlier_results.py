"""Results of the steps before, and of evaluations, that the loop may hold in the present step."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import torch

from ...measure.storage import local
from ...torch_private.pytrees import tree_leaves
from ..parts.output_uses import Result, alive_bytes, results_of


class EarlierResults:
    """Watches results, and holds none.

    Attributes
    ----------
    stale
        Those that were there when the present step began, if they were more than a few.
    """

    def __init__(self) -> None:
        self._rows: list[Result] = []
        self._few_bytes = 0
        self.stale: list[Result] = []

    def add(self, results: Iterable[Result]) -> None:
        """Watch results of a step that has ended."""
        self._rows += results

    def places(self) -> set[int]:
        """The addresses of those that are there."""
        self._look()
        return {it.place for it in self._rows}

    def add_evaluation(self, outputs: Any) -> None:
        """Watch the outputs of a forward without gradients."""
        self._look()
        found = (local(t) for t in tree_leaves(outputs) if isinstance(t, torch.Tensor))
        self._rows += results_of(t for t in found if t.layout is torch.strided)

    def _look(self) -> None:
        self._rows = [it for it in self._rows if not it.is_gone]

    def begin_step(
        self,
        given: Container[int],
        fixed: Callable[[], Container[int]],
        few_bytes: int,
    ) -> int:
        """Look which are there as a step begins; their bytes.

        Parameters
        ----------
        given, fixed
            Places that count elsewhere: of what the step is given, and of the model's state. The
            outputs of an evaluation may be parameters, buffers, or views of them.
        few_bytes
            Bytes up to which they are a few.
        """
        self._look()
        found = [it for it in self._rows if it.place not in given]
        if found:
            places = fixed()
            found = [it for it in found if it.place not in places]
        num_bytes, self._few_bytes = alive_bytes(found), few_bytes
        self.stale = found if num_bytes > few_bytes else []
        return num_bytes

    def stay_bytes(self) -> int:
        """Bytes of those of the present step that are there still; none where they are a few."""
        there = alive_bytes(self.stale)
        return there if there > self._few_bytes else 0
