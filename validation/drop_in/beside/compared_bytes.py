"""What the steps of a comparison take, before the loop: over the budget where nothing else is.

What a plain step saves for its backward waits elsewhere, but not what its Python code holds, as the
skip connections of a U-Net. A step by schedules is beside code between its graphs, for which no
schedule leaves room before it is measured. So both are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from schedsim.units import format_bytes

from ..records.outside_code import OutsideMeter, outside_meter
from .held_state import may_record

PLAIN, PLANNED = "plain", "planned"
_PLAIN = (
    "the plain forward, with which steps are compared, takes that without all that it saves for a "
    'backward; check="never" compares nothing'
)
_PLANNED = {
    True: "a step by schedules that keep little takes that with the code between its graphs, for "
    "which room is left once it is measured; so may the first steps of the loop",
    False: "the steps that are compared hold all outputs with their gradients, some of which a "
    'loop may drop; check="never" compares nothing',
}


class ComparedBytes:
    """Of the first plain step and the first planned one that are measured.

    Attributes
    ----------
    tops
        Kind of step -> the most bytes beyond those at its start.
    cut
        Kinds of steps in which ops were measured, as of a new graph: that ends the measurement.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._meter: OutsideMeter | None = None
        self._kind = ""
        self.tops: dict[str, int] = {}
        self.cut: set[str] = set()

    def watched(self, kind: str, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step`, which is measured from its call to that of another, or to `ends`."""

        def run(*inputs: Any, **keywords: Any) -> Any:
            self.begins(kind)
            return step(*inputs, **keywords)

        return run

    def begins(self, kind: str) -> None:
        """A step of this kind begins."""
        self.ends()
        if kind not in self.tops and may_record():
            self._meter, self._kind = outside_meter(self._device), kind
        if self._meter is not None:
            self._meter.start()

    def ends(self) -> None:
        """The step has ended."""
        meter, self._meter = self._meter, None
        if meter is None:
            return
        if stretches := meter.stop():
            self.tops[self._kind] = max(stretch.top for stretch in stretches)
        else:
            self.cut.add(self._kind)

    def lines(self, resident_bytes: int, budget_bytes: int, *, is_broken: bool) -> Iterator[str]:
        """At most one line, on the step that takes most.

        Parameters
        ----------
        resident_bytes
            Of what the model holds, and of the inputs.
        is_broken
            Whether code runs between graphs of a step.
        """
        kind = max(self.tops, key=lambda it: self.tops[it], default=None)
        if kind is None or resident_bytes + self.tops[kind] <= budget_bytes:
            return
        yield (
            "rematerialize(..., in_place=True) has taken "
            f"{format_bytes(resident_bytes + self.tops[kind])} in the call, over the budget of "
            f"{format_bytes(budget_bytes)}: " + (_PLAIN if kind == PLAIN else _PLANNED[is_broken])
        )
