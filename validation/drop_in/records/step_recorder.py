"""The record of a step: when one begins, when it ends, and what a finished one tells."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ...measure.allocator import NO_BLOCKS, close_later, close_waiting, is_recording, records_ended
from ...torch_private.profiler_records import is_profiling
from ..parts.planned_part import PlannedPart
from .outside_code import OutsideBytes, OutsideMeter, outside_meter
from .present_step import PresentStep
from .record_turns import RecordTurns
from .step_meter import APART, BACK, StepMeter
from .step_record import NOTHING, StepRecord

_all: weakref.WeakSet[StepRecorder] = weakref.WeakSet()


class StepReading(NamedTuple):
    """What the record of a step tells.

    Attributes
    ----------
    record
        The bytes around the parts; ``None`` if some half ran twice, or not at all, or the step is
        like no other.
    behind
        Those of the code behind the last backward; ``None`` if other code has run there.
    left_blocks, held_blocks
        Bytes by address of what that code has allocated, and what all before it has, and is there
        when the record ends.
    top_bytes
        The most bytes of the step before that code, beyond those at the start of the record.
    early_top_bytes, front_top_bytes
        The most of these until the first backward begins, and while all that the step before has
        left is there still.
    made_before
        Bytes of the inputs that are among them, because the record began before they were made.
    """

    record: StepRecord | None
    behind: OutsideBytes | None
    left_blocks: Mapping[int, int]
    held_blocks: Mapping[int, int]
    top_bytes: int
    early_top_bytes: int
    front_top_bytes: int
    made_before: int = 0


class StepRecorder:
    """Records some of the steps of one model.

    Parameters
    ----------
    step
        The running step.
    ended
        Method that is called where a record could end, outside of a backward; returns whether
        there was one. It keeps its object no longer alive.

    Attributes
    ----------
    turns : RecordTurns
        Which steps are recorded.
    meter
        The record of the running step; ``None`` without one.
    sets_apart
        Whether halves of other models do not count where no call of this one is open. Their own
        sessions plan them within the budget, beside what this model keeps, and no schedule of this
        one changes what they take then.
    """

    def __init__(self, step: PresentStep, ended: Callable[[], bool]) -> None:
        self._step, self._ended = step, weakref.WeakMethod(ended)
        self.turns = RecordTurns()
        self.meter: StepMeter | None = None
        self.sets_apart = False
        self._front = NOTHING
        _all.add(self)

    @property
    def is_on(self) -> bool:
        """Whether the running step is recorded."""
        return self.meter is not None

    # -- beginning and ending ---------------------------------------------------------------------

    def start(self, device: torch.device, parts: Sequence[PlannedPart], num_records: int) -> bool:
        """Begin a record, if it is worth it; whether no profiler of the loop's own forbids it.

        Parameters
        ----------
        parts
            All parts of the model: steps with one that was not measured tell nothing.
        num_records
            Number of the kinds of steps that are known.
        """
        if not self.turns.may_look(num_records):
            return True
        meter, num_ended = None, records_ended()
        if all(part.is_measured for part in parts):
            close_waiting()  # records of other models, whose steps have ended
            if records_ended() != num_ended:
                return True  # a later step tells, which begins under none of them
            meter = outside_meter(device)
        if meter is None and is_profiling():  # a later step tells
            if not is_recording():
                return False
            if self.turns.is_blocked():
                for other in list(_all):
                    other.stop()
            return True
        self.turns.looks()
        if meter is not None:
            self.begin(meter)
        return True

    def begin(self, meter: OutsideMeter) -> StepMeter:
        """Begin a record by `meter`."""
        self.meter = found = StepMeter(meter)
        self.end_later()
        return found

    def end_later(self) -> None:
        """End the record where the loop goes on.

        Not in the backward that ends the step: it runs with a copy of the thread's state, which
        would start the record again.
        """
        waiting = self._ended
        close_later(lambda: (ended := waiting()) is not None and ended())

    def stop(self) -> None:
        """End the record of a step that tells nothing; a later step is recorded instead."""
        if self.meter is not None:
            self.meter.stop()
            self.meter = None
            self.turns.is_missing = True

    # -- while it runs ----------------------------------------------------------------------------

    def half_begins(self, half: int, given: Sequence[Any]) -> None:
        """A half is about to begin, `i` of call i or ``~i``, and is given these."""
        if self.meter is not None:
            self.meter.results.begin(half, given)

    def mark(self, what: str, number: int, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """Note what is about to run: a half of call `number`, or the code after it."""
        if self.meter is not None:
            self.meter.mark(what, number, watched)
        for other in list(_all):
            if other is not self and other.meter is not None:
                other._mark_apart(APART if what in ("forward", "backward") else BACK)

    def _mark_apart(self, what: str) -> None:
        """A half of another model begins, or has run."""
        if self.meter is None or not self.sets_apart or self._step.calls.is_open:
            return
        if what == APART or self.meter.marks[-1:] == [(APART, -1)]:
            self.meter.mark(what, -1)

    # -- reading ----------------------------------------------------------------------------------

    def read(self, passing_bytes: int) -> StepReading | None:
        """What the record of a step tells whose backwards have all run; ``None`` for nothing.

        Parameters
        ----------
        passing_bytes
            Bytes of results of earlier steps that were there as the step began.
        """
        meter, step = self.meter, self._step
        if meter is None or not step.calls.rows:
            return None
        self.meter, stretches = None, meter.stop()
        if not step.calls.has_backward:
            self.turns.misses()
            return None
        if not step.tells_bytes:
            return StepReading(None, None, NO_BLOCKS, meter.held_blocks, 0, 0, 0)
        if stretches is None:
            self.turns.is_missing = True
            return None
        if meter.begins_early:
            is_resident = step.calls.rows[0].part.device == "cuda"
            self._front = meter.front(
                meter.before(stretches), step.made_before, is_resident=is_resident
            )
        record = meter.record(stretches, step.calls, self._front, passing_bytes)
        behind, top = meter.behind(stretches), meter.top_bytes(stretches)
        early, front = meter.early_top_bytes(stretches), meter.front_top_bytes(stretches)
        made = step.made_before if meter.begins_early else 0
        blocks = meter.left_blocks, meter.held_blocks
        return StepReading(record, behind, *blocks, top, early, front, made)
