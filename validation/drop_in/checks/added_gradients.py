"""Gradients that several calls of one backward add to each other, in other orders or types.

Autograd adds all gradients of a parameter one after the other. A call of a graph gives one: where
the graph reads the parameter several times, their sum, which is added to those of other calls and
of code outside of any, as of a penalty in the loss. So it is with a result of one graph that
others read. And within one block of autocast all forwards cast a parameter by one node, in whose
type their gradients are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...torch_private.autograd_nodes import gradient_place, when_whole
from ...torch_private.graph_tasks import backward_number
from ..parts.planned_part import PlannedPart


class Trained(NamedTuple):
    """What one call of a part gives gradients, and where its forward has run.

    Attributes
    ----------
    of
        What each argument of the part is, where it is a parameter: a number.
    cast
        What stands for the block of autocast; ``None`` outside of any.
    results
        Where the gradients of its other arguments are added, as those of results of other graphs.
    """

    of: dict[int, int]
    cast: Any
    results: dict[int, tuple[int, int]]

    @classmethod
    def by(cls, part: PlannedPart, arguments: Sequence[Any], cast: Any) -> Trained:
        """What a call of `part` with these `arguments` trains."""
        trained = {i: id(arguments[i]) for i in part.trained_positions}
        results = {i: gradient_place(arguments[i]) for i in part.derived_positions}
        return cls(trained, cast, results)


class AddedGradients:
    """Says where the steps of a loop are the plain ones within rounding, for one of these reasons.

    Parameters
    ----------
    tell
        Says a line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._backward = -1
        self._given: dict[int, Any] = {}  # parameter -> the block of the call that gave a gradient
        self._given_results: set[tuple[int, int]] = set()
        self._is_told = False  # that results are read by several graphs
        self._is_told_outside = False  # that code outside of graphs gives gradients, too
        self._made: set[int] = set()  # addresses of what the calls of this backward give
        self._watched: list[Any] = []

    def gives(self, part: PlannedPart, trained: Trained) -> None:
        """A backward of `part` gives gradients to what its call has `trained`."""
        number = backward_number()
        if number != self._backward:
            self._backward, self._given, self._given_results = number, {}, set()
            self._forget()
        known = {i: self._given[it] for i, it in trained.of.items() if it in self._given}
        cast = known.keys() & part.casts if trained.cast is not None else ()
        if any(known[i] is trained.cast for i in cast):
            self._tell(
                f"{part.name} runs several times before a backward within one block of autocast, "
                "in which the plain step casts each parameter once, and adds its gradients in the "
                "type of the block; here they are added in that of the parameter: such steps are "
                "the plain ones within the rounding of that sum. With a torch.autocast for each "
                "forward they are the same"
            )
        elif known.keys() & part.sums:
            self._forget()  # the line is said of all that is added
            self._tell(
                f"{part.name} reads a parameter several times, and gives the sum of its gradients, "
                "which is added to those of other forwards; the plain step adds one after the "
                "other: steps of several forwards before a backward are the plain ones within "
                "rounding"
            )
        elif not self._is_told and self._given_results.intersection(
            at for i, at in trained.results.items() if i in part.sums
        ):
            self._is_told = True
            self._tell(
                f"{part.name} reads a result of another graph several times, and gives the sum of "
                "its gradients, which is added to those of other graphs; the plain step adds one "
                "after the other: steps in which several graphs read it are the plain ones within "
                "rounding"
            )
        summed = {it for i, it in trained.of.items() if i in part.sums and it not in self._given}
        if summed and not self._is_told_outside and not known:
            self._watched += when_whole(summed, lambda whole: self._see_whole(part.name, whole))
        self._given_results.update(trained.results.values())
        self._given |= dict.fromkeys(trained.of.values(), trained.cast)

    def gave(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """The backward of a part has run, and gives these `gradients`."""
        if self._watched:
            self._made.update(it.data_ptr() for it in gradients if it is not None)

    def _see_whole(self, name: str, whole: torch.Tensor) -> None:
        """See a gradient as it goes to `.grad`: a new tensor, where others were added to it."""
        if backward_number() != self._backward:
            return  # one of the plain step, with which a graph is compared
        if self._is_told_outside or whole.data_ptr() in self._made or not self._made:
            return
        self._is_told_outside = True
        self._tell(
            f"{name} reads a parameter several times, and gives the sum of its gradients, which is "
            "added to those of code outside of it, as of a penalty in the loss; the plain step "
            "adds one after the other: such steps are the plain ones within rounding. Where that "
            "code runs in front of the forward, its gradients are added last, as in the plain step"
        )

    def _forget(self) -> None:
        """Another backward begins: hooks of the one before, which need not have run, go."""
        for handle in self._watched:
            handle.remove()
        self._watched, self._made = [], set()
