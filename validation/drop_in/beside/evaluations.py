"""Forwards without gradients, as a rollout or an evaluation, and what they take.

They run as they are, and no schedule changes that. So the largest are measured, and said where they
take more than the budget, with what is resident then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from schedsim.units import format_bytes

from ...torch_private.graph_tasks import in_backward
from ..records.outside_code import outside_meter
from .held_state import may_record

_MOST_LOOKS = 4


class Evaluations:
    """Of one model.

    Attributes
    ----------
    peak_bytes
        The most that one was seen to take, with what was there before it.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._num_looks = self._given_bytes = self._top_bytes = 0
        self._is_said = False

    @contextmanager
    def measured(
        self, device: torch.device, resident_bytes: int, given_bytes: int
    ) -> Iterator[None]:
        """Measure the forward in the block, if no larger batch was measured before.

        Parameters
        ----------
        resident_bytes, given_bytes
            Bytes that are there before it, and of those its inputs.
        """
        is_larger = given_bytes > self._given_bytes and self._num_looks < _MOST_LOOKS
        meter = outside_meter(device) if is_larger and not in_backward() and may_record() else None
        if meter is None:
            if given_bytes >= self._given_bytes:  # beside what is resident by now
                self.peak_bytes = max(self.peak_bytes, resident_bytes + self._top_bytes)
            yield
            return
        self._num_looks += 1
        meter.start()
        try:
            yield
        finally:
            stretches = meter.stop()
            if stretches:
                self._given_bytes, self._top_bytes = given_bytes, stretches[0].top
                self.peak_bytes = max(self.peak_bytes, resident_bytes + self._top_bytes)

    def new_lines(self, budget_bytes: int) -> Iterator[str]:
        """What is to be said of steps within this budget, and was not said before."""
        if self.peak_bytes <= budget_bytes or self._is_said:
            return
        self._is_said = True
        yield (
            f"a forward without gradients takes about {format_bytes(self.peak_bytes)}, over the "
            f"budget of {format_bytes(budget_bytes)}: it runs as it is, and no schedule changes "
            "that; smaller batches there take less"
        )
