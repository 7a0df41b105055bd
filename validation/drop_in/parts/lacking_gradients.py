"""Backwards of compiled parts for which some gradients do not come."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

import torch

from ...op_level.emit import Halves
from .gradient_layouts import put_in_form, watch_backward

if TYPE_CHECKING:
    from ..session import Session
    from .traced_part import TracedPart

_MOST_KINDS = 8


class LackingGradients:
    """What Dynamo calls for one compiled graph, whose backward may lack gradients.

    A loop that takes the loss of ``model(x, labels=x)`` gives the logits no gradient. Zeros in
    its place would be as large as they are. So the groups that read it are compiled once more for
    one number that stands for all entries: the other ops, and what the forward keeps, are the same.
    Gradients in other strides than those of the outputs are copied by AOTAutograd.

    Parameters
    ----------
    call, part
        What Dynamo would call for the graph, and the part behind it.
    """

    def __init__(self, session: Session, call: Callable[..., Any], part: TracedPart) -> None:
        self._session, self._call, self._part = session, call, part
        self._without: dict[tuple[TracedPart, frozenset[int]], TracedPart | None] = {}
        part.runs_by(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph."""
        part = self._part
        found = self._call(*arguments)
        begins = part.watch_buffers()
        watch_backward(found, lambda _given: begins(), makes_zeros=False)
        return found

    def backward_of(
        self, part: TracedPart, number: int, given: list[Any]
    ) -> tuple[TracedPart, Halves]:
        """The part and the code for a backward after a forward of `part`.

        Gradients of `given` that lack are put there: as one number where the code reads that, and
        else as zeros.
        """
        lacking = frozenset(i for i, it in enumerate(given) if it is None)
        found = self.taken_without(part, number, lacking) if lacking else None
        if found is not None:
            self.stand_in(part, given)
            return found[0], found[0].code.halves(found[1])
        put_in_form(given, part.given)
        return part, part.code.halves(number)

    def stand_in(self, part: TracedPart, given: list[Any]) -> None:
        """Put one number in the place of each gradient of `part` that lacks among `given`."""
        device = next((it.device for it in given if it is not None), None)
        for i, (it, form) in enumerate(zip(given, part.given, strict=True)):
            if it is None:
                assert form.shape is not None
                given[i] = torch.zeros((), dtype=form.dtype, device=device).expand(form.shape)

    def taken_without(
        self, part: TracedPart, number: int, lacking: Container[int]
    ) -> tuple[TracedPart, int] | None:
        """The part and its schedule by which backwards run for which gradients are `lacking`.

        ``None`` where the backward of `part` by its schedule `number` runs, with zeros for them.
        """
        come = frozenset(i for i in range(len(part.given)) if i in lacking)
        key = part, come
        if key not in self._without:
            if len(self._without) >= _MOST_KINDS or len(come) == len(part.given):
                return None
            self._without[key] = part.without_gradients(come)
        other = self._without[key]
        if other is None:
            return None
        other.learn_dropped(part.use.dropped)
        other.cost_as(part)
        return other, other.add(part.schedules[number])
