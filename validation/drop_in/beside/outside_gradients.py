"""Gradients that no graph has made: what has made them runs as it is, whatever the budget.

As a gradient penalty by ``model.forward(...)``, or a loss by another method, with a backward of its
own. It is seen where an optimizer steps by what came behind its step before. From the third such
step on, that code is measured where it is to come again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import torch

from schedsim.units import format_bytes

from ...measure.allocator import close_later, records_ended
from ...measure.cuda import requested_bytes
from ...torch_private.graph_tasks import in_backward
from ...torch_private.storage_refs import StorageWeakRef, is_gone, weakly
from ..records.outside_code import OutsideMeter, outside_meter
from .held_state import HeldState, changes_parameters, may_record

_MOST_LOOKS, _MOST_TRIES = 2, 16
"""Times that such code is measured, and records that are begun for it."""


class _Seen:
    """What one optimizer has stepped by.

    Attributes
    ----------
    num_backwards
        Backwards of graphs as its last step began.
    gradients
        Those of its last step, and how often each had been written.
    since, period
        Steps since the last by gradients from outside, and the number of steps from the one before
        that to it. A period is not known before the second.
    is_outside, has_been
        Whether its present step is one, and whether any was.
    may_record, num_ended
        Whether a record could begin as its present step did, and how many had ended by then.
    """

    def __init__(self) -> None:
        self.num_backwards = self.since = self.period = 0
        self.gradients: list[tuple[StorageWeakRef, int]] = []
        self.is_outside = self.has_been = self.may_record = False
        self.num_ended = 0


class OutsideGradients:
    """Of one model.

    Parameters
    ----------
    held
        What the model holds.
    others
        Bytes besides, on a CPU: what the loop holds of inputs and outputs.
    """

    def __init__(self, held: HeldState, others: Callable[[], int]) -> None:
        self._held, self._others = held, others
        self._seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Seen]
        self._seen = weakref.WeakKeyDictionary()
        self._name = ""  # of an optimizer that has stepped so
        self._peak_bytes = self._num_looks = self._num_tries = 0
        self._open: tuple[OutsideMeter, int] | None = None  # with what is resident
        self._said: set[bool] = set()

    def begins(self, optimizer: torch.optim.Optimizer, num_backwards: int) -> None:
        """A step of `optimizer` begins behind so many backwards of graphs."""
        may = may_record()  # before a record is ended here
        self.close()
        if in_backward() or self._held.device_of(optimizer) is None:
            return
        if not changes_parameters(optimizer):
            return
        gradients = self._gradients_for(optimizer)
        before = self._seen.get(optimizer)
        now = before or self._seen.setdefault(optimizer, _Seen())
        now.is_outside = (
            before is not None
            and num_backwards == now.num_backwards
            and _are_new(gradients, now.gradients)
        )
        now.since += 1
        if now.is_outside:
            self._name = type(optimizer).__name__
            now.period, now.since = now.since if now.has_been else 0, 0
            now.has_been = True
        now.num_backwards, now.may_record, now.num_ended = num_backwards, may, records_ended()

    def _gradients_for(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        found = self._held.gradients_for(optimizer)
        return [it for it in found if it.layout is torch.strided]

    def ends(self, optimizer: torch.optim.Optimizer, *, may_measure: bool) -> None:
        """The step of `optimizer` is over: measure what comes, if it is to make gradients."""
        now, device = self._seen.get(optimizer), self._held.device_of(optimizer)
        if now is None or device is None:
            return
        now.gradients = [(weakly(it), it._version) for it in self._gradients_for(optimizer)]
        wanted = (
            may_measure
            and now.period
            and now.since == now.period - 1
            and self._num_looks < _MOST_LOOKS
        )
        # The range of this step, which ends behind here, began under no record that has ended.
        is_safe = now.may_record and now.num_ended == records_ended() and not in_backward()
        if not wanted or not is_safe or self._num_tries >= _MOST_TRIES:
            return
        meter = outside_meter(device)
        if meter is None:
            return
        self._num_tries += 1
        if device.type == "cuda":
            resident = requested_bytes(device)
        else:
            resident = self._held.present_bytes + self._others()
        meter.start()
        self._open = meter, resident
        end = weakref.WeakMethod(self.close)
        close_later(lambda: (close := end()) is not None and close())

    def close(self) -> bool:
        """End the record, where a graph or an optimizer begins; whether there was one."""
        found, self._open = self._open, None
        if found is None:
            return False
        meter, resident = found
        stretches = meter.stop()
        if stretches:
            self._num_looks += 1
            self._peak_bytes = max(self._peak_bytes, resident + stretches[0].top)
        return True

    def new_lines(self, budget_bytes: int) -> Iterator[str]:
        """What is to be said of steps within this budget, and was not said before."""
        is_over = self._peak_bytes > budget_bytes
        if not self._name or is_over in self._said or True in self._said:
            return
        self._said.add(is_over)
        what = (
            f"{self._name} steps by gradients that no graph has made: their code, as "
            "model.forward(...) or another method than the one that has the budget, runs as it is"
        )
        if is_over:
            yield (
                f"{what}, and takes about {format_bytes(self._peak_bytes)}, over the budget of "
                f"{format_bytes(budget_bytes)}; a smaller batch there takes less"
            )
        else:
            yield (
                f"{what}, not within the budget of {format_bytes(budget_bytes)}; a line says what "
                "it takes where that is more, once it was measured"
            )


def _are_new(gradients: list[torch.Tensor], before: list[tuple[StorageWeakRef, int]]) -> bool:
    """Whether some of the `gradients` were made or written since those were noted."""
    known = {reference.cdata: version for reference, version in before if not is_gone(reference)}
    return any(known.get(weakly(it).cdata) != it._version for it in gradients)
