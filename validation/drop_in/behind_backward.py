"""The code behind the last backward of a step: what it takes, and what it leaves for later steps.

No part runs there that a plan could change: another forward of the model's own modules, by
``functional_call`` or ``model.forward``, a copy of the gradients, or the next batch. A record ends
where a torch optimizer begins its step.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from .held_state import HeldState
from .outside_code import OutsideBytes


class BehindBackward:
    """Of the step that is measured.

    Parameters
    ----------
    held
        What the model holds.
    """

    def __init__(self, held: HeldState) -> None:
        self._held = held
        self._before: set[int] = set()

    def begin(self) -> None:
        """The step begins: the record tells nothing of the gradients that are there."""
        self._before = set(self._held.gradients())

    def peak_bytes(self, stretch: OutsideBytes, given_bytes: int) -> int:
        """The most bytes in the last `stretch` of the record, beside those that the step is given.

        Not counted is what the loop holds from before the step, and gradients from before it that
        are gone by the end.
        """
        gradients = self._held.gradients()
        staying = sum(size for it, size in gradients.items() if it in self._before)
        return self._held.lasting_bytes + staying + given_bytes + stretch.top

    def left_bytes(self, blocks: Mapping[int, int], coming: Container[int]) -> int:
        """Bytes of the `blocks` that the loop holds as the next step begins.

        Parameters
        ----------
        blocks
            Bytes by address of what the stretch has allocated, and not released.
        coming
            Addresses of what the next step is given, which counts there.
        """
        counted = {*self._held.places, *self._held.gradients()}
        return sum(size for it, size in blocks.items() if it not in counted and it not in coming)
