"""Gradients that several calls of one backward add to each other, in other orders or types.

Autograd adds all gradients of a parameter one after the other. A call of a graph gives one: where
the graph reads the parameter several times, their sum. And within one block of autocast all
forwards cast a parameter by one node, in whose type their gradients are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...torch_private.graph_tasks import backward_number
from ..parts.planned_part import PlannedPart


class Trained(NamedTuple):
    """What one call of a part trains, and where its forward has run.

    Attributes
    ----------
    of
        What each argument of the part is, where it is a parameter: a number.
    cast
        What stands for the block of autocast; ``None`` outside of any.
    """

    of: dict[int, int]
    cast: Any

    @classmethod
    def by(cls, part: PlannedPart, arguments: Sequence[Any], cast: Any) -> Trained:
        """What a call of `part` with these `arguments` trains."""
        return cls({i: id(arguments[i]) for i in part.trained_positions}, cast)


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

    def gives(self, part: PlannedPart, trained: Trained) -> None:
        """A backward of `part` gives gradients to what its call has `trained`."""
        number = backward_number()
        if number != self._backward:
            self._backward, self._given = number, {}
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
            self._tell(
                f"{part.name} reads a parameter several times, and gives the sum of its gradients, "
                "which is added to those of other forwards; the plain step adds one after the "
                "other: steps of several forwards before a backward are the plain ones within "
                "rounding"
            )
        self._given |= dict.fromkeys(trained.of.values(), trained.cast)
