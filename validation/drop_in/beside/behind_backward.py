"""The code behind the last backward of a step: what it takes, and what it has left at its end.

No part runs there that a plan could change: another forward of the model's own modules, by
``functional_call`` or ``model.forward``, a copy of the gradients, or the next batch. A record ends
where a torch optimizer begins its step.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from schedsim.units import format_bytes

from ...measure.storage import storage_bytes
from ..records.outside_code import OutsideBytes
from ..records.step_recorder import StepReading
from .held_state import HeldState


class BehindBackward:
    """Of the step that is measured.

    Parameters
    ----------
    held
        What the model holds.
    """

    def __init__(self, held: HeldState) -> None:
        self._held = held
        self._gradient_bytes = 0  # as the step began
        self._peak_bytes = 0  # in the step that was measured last
        self._is_said = False

    def begin(self) -> None:
        """The step begins."""
        self._gradient_bytes = storage_bytes(self._held.present_gradients())

    def see(
        self,
        reading: StepReading,
        given: Mapping[int, int],
        coming: Container[int] | None,
    ) -> int | None:
        """Learn from a measured step; how many bytes it has left for the next one.

        Parameters
        ----------
        given
            Bytes by address of what the step was given.
        coming
            Addresses of what the next step is given, which counts there. ``None`` where no step
            begins: where an optimizer's does, nobody knows what stays.

        Returns
        -------
        int or None
            ``None`` where that is not known.
        """
        assert reading.behind is not None
        self._peak_bytes = self.peak_bytes(reading.behind, sum(given.values()))
        if coming is None or self._held.is_stepping:
            return None
        return self.left_bytes(reading.left_blocks, coming)

    def peak_bytes(self, stretch: OutsideBytes, given_bytes: int) -> int:
        """The most bytes in the last `stretch` of the record, beside those that the step is given.

        Not counted is what the loop holds from before the step.
        """
        resident = self._held.lasting_bytes + self._held.in_front_bytes + self._gradient_bytes
        return resident + given_bytes + stretch.top

    def left_bytes(self, blocks: Mapping[int, int], coming: Container[int]) -> int:
        """Bytes of the `blocks` that the loop holds as the next step begins.

        Parameters
        ----------
        blocks
            Bytes by address of what the stretch has allocated, and not released.
        """
        counted = self._held.counted_places()
        return sum(size for it, size in blocks.items() if it not in counted and it not in coming)

    def new_lines(self, budget_bytes: int) -> Iterator[str]:
        """What is to be said of steps within this budget, and was not said before."""
        if self._peak_bytes <= budget_bytes or self._is_said:
            return
        self._is_said = True
        yield (
            f"with the code behind its backward a step takes about {format_bytes(self._peak_bytes)}"
            f", over the budget of {format_bytes(budget_bytes)}: no schedule changes what runs "
            "there, as copies of gradients, or another forward of the model's modules "
            "(functional_call, model.forward)"
        )
