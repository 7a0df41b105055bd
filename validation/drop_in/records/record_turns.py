"""Which steps of a loop are measured: the first, those unlike all before, and a few more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..parts.output_uses import OutputUse
from .step_record import Key

Used = tuple[Key, OutputUse | None]
"""A call, and what the loop did with its outputs; ``None`` for a call that no record has met."""

_MOST_LINES = 8
_MOST_WAITS = 8
"""Times that a use of the outputs is waited for which no record has met."""
_MOST_BLOCKED = 8
"""Steps that wait for the record of another model: more than a critic runs for a generator."""
_MOST_PASSING_LOOKS = 4
"""Steps that are measured again for results of the step before, as of a larger one."""
_MOST_KIND_LOOKS = 32
"""Steps in which a record is tried because they lie within those of other models than before."""


class RecordTurns:
    """Decides which steps are measured.

    Attributes
    ----------
    is_missing
        Whether the next step that can be measured is to be.
    """

    def __init__(self) -> None:
        self.is_missing = True
        self._num_looks = self._num_passing_looks = self._num_missed = self._num_kind_looks = 0
        self._num_blocked = 0
        self._num_held_off = 0  # steps in which no record begins, whatever is missing
        # Uses of the outputs with which the code between halves was measured, and how often others
        # came. After each time a record waits a step longer, so that steps in turns are all met.
        self._measured: set[Used] = set()
        self._num_unmeasured: Counter[Used] = Counter()
        self._steps_until_record: int | None = None

    def may_look(self, num_records: int) -> bool:
        """Whether one more step may be measured, beside the kinds of steps that are known."""
        is_few = num_records < _MOST_LINES and self._num_looks < 4 * _MOST_LINES
        return is_few and not self._num_held_off

    def looks(self) -> None:
        """A step is being measured, or needs no record."""
        self.is_missing = False
        self._num_blocked = 0
        self._num_looks += 1

    def is_blocked(self) -> bool:
        """The record of another model's step is on; whether that has been so for too long.

        Its backward may never come, as in a loop that has failed and whose frames are kept.
        """
        self._num_blocked = (self._num_blocked + 1) % _MOST_BLOCKED
        return not self._num_blocked

    def misses(self) -> None:
        """The record has met no backward: the next one waits a step longer, after each time."""
        self.is_missing = True
        self._num_missed += 1
        self._num_held_off = 1 + self._num_missed % _MOST_WAITS

    def looks_at_passing(self, is_wanted: bool) -> bool:
        """Whether a step is measured for the results of the step before, if this `is_wanted`."""
        if not is_wanted or self._num_passing_looks >= _MOST_PASSING_LOOKS:
            return False
        self._num_passing_looks += 1
        return True

    def looks_at_kind(self, is_new: bool) -> bool:
        """Whether a step is measured because it `is_new`, though its calls are known."""
        if not is_new or self._num_kind_looks >= _MOST_KIND_LOOKS:
            return False
        self._num_kind_looks += 1
        return True

    def see(self, used: Used) -> None:
        """Measure a later step if this one was the first to use outputs so: its code is another."""
        if used in self._measured:
            return
        if self._steps_until_record is None and self._num_unmeasured[used] < _MOST_WAITS:
            self._num_unmeasured[used] += 1
            self._steps_until_record = self._num_unmeasured[used]

    def learn(self, uses: Iterable[Used], *, alone: bool) -> None:
        """A record has met these uses; `alone` where it has replaced an earlier one."""
        if alone:
            self._measured.clear()
        self._measured.update(uses)

    def step_ends(self) -> None:
        """A step of the loop has ended."""
        self._num_held_off = max(0, self._num_held_off - 1)
        if self._steps_until_record is not None:
            self._steps_until_record -= 1
            if self._steps_until_record == 0:
                self._steps_until_record, self.is_missing = None, True
