"""The calls of a step of several parts, and the bytes of the code around each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from ..records.step_record import (
    MadeInputs,
    StepRecord,
    beside_passing,
    grown_bytes,
    last_first,
    scaled_bytes,
)


class AroundCall(NamedTuple):
    """Bytes around a call of a part, independent of the schedules of the parts.

    Attributes
    ----------
    shared
        Bytes of inputs that are outputs of earlier calls, and are counted there.
    before
        Bytes resident when the forward of the call begins: the step's, what earlier code holds, and
        gradients that earlier backwards have left.
    between
        Most bytes that the code after the forward takes until the next half begins.
    backward_before
        Bytes resident when its backward begins, beside what calls keep.
    after
        Most bytes of the code after this backward until the next half, beside what calls keep, with
        the gradients that backward has left by then, those of inputs among them.
    """

    shared: int
    before: int
    between: int
    backward_before: int
    after: int


def bytes_around_calls(
    record: StepRecord,
    parts: Sequence[PlannedPart],
    sizes: Sequence[Binding],
    resident_bytes: int,
    passing_bytes: int = 0,
) -> list[AroundCall]:
    """The bytes around each call of `record` at `sizes`, beside `resident_bytes`; O(calls).

    Parameters
    ----------
    parts, sizes
        For each call: its part, and the values of the part's open sizes.
    passing_bytes
        Bytes of results of the step before, until the first backward.
    """
    return _AroundHalves(record, parts, sizes, resident_bytes, passing_bytes).around()


class _AroundHalves:
    """The halves of a step one after another, and what the code around them holds."""

    def __init__(
        self,
        record: StepRecord,
        parts: Sequence[PlannedPart],
        sizes: Sequence[Binding],
        resident_bytes: int,
        passing_bytes: int,
    ) -> None:
        self.record, self.parts, self.sizes = record, parts, sizes
        self.passing = passing_bytes
        self.shared = [_shared_bytes(record, i, part, sizes[i]) for i, part in enumerate(parts)]
        # What the step is given is there in every call; the first call reads it. So is what the
        # code before the first call has kept; its own most stands with the first call.
        left, most = (self._scaled(n, 0) for n in (record.before.left, record.before.most))
        # Bytes beside what calls keep, at the present half: beside those before the step, what the
        # code after open forwards holds, gradients, and what the code after backwards has left.
        self.level = resident_bytes + self.shared[0] + left + passing_bytes
        self.most_before = self.level + most - left
        self.held: dict[int, int] = {}  # call -> what the code after its forward holds for it
        self.trained: set[int] = set()

    def around(self) -> list[AroundCall]:
        order = self.record.halves
        last = max(order)
        before, between = [0] * len(self.parts), [0] * len(self.parts)
        backward_before, after = list(before), list(before)
        at_end, is_first = 0, True
        for half, following in zip(order, (*order[1:], order[-1]), strict=True):
            if half >= 0:
                i = half
                before[i] = self.level + self._waiting(half)
                given = self._given(following)
                stretch = self.record.after_forward[i]
                most = max(0, self._scaled(stretch.most, i, following) - given)
                if following == ~i:
                    most = beside_passing(self.record, most, self.passing)
                between[i] = most + given
                left = max(0, self._scaled(stretch.left, i, following) - given)
                if i == last:
                    at_end = left
                else:
                    self.held[i] = left
                    self.level += left
            else:
                i = ~half
                if is_first and order == last_first(len(self.parts)):
                    self.level -= self.passing
                is_first = False
                self.level -= self.held.pop(i, 0)
                waiting = self._waiting(half)
                backward_before[i] = self.level + waiting
                self._train(i)
                stretch = self.record.after_backward[i]
                behind = waiting + self._scaled(stretch.most, i)
                after[i] = self.level + behind + self.parts[i].input_gradient_bytes(self.sizes[i])
                self.level += self._scaled(stretch.left, i)
                if self.record.held_results:
                    self.level += self._scaled(self.record.held_results[i], i)
        after[0] = max(after[0], self.most_before)
        return [
            AroundCall(
                self.shared[i],
                before[i],
                between[i],
                backward_before[i] + at_end,
                after[i] + at_end,
            )
            for i in range(len(self.parts))
        ]

    def _train(self, i: int) -> None:
        """Count the gradients that call i makes, if no other has made them."""
        key = self.record.trained[i] if self.record.trained else i
        if key not in self.trained:
            self.level += self.parts[i].gradient_bytes
            self.trained.add(key)

    def _waiting(self, half: int) -> int:
        """Bytes of results of calls that are over which wait for another half as `half` begins."""
        return sum(
            max(self._scaled(it.num_bytes, it.call), self._scaled_gradients(it.num_bytes, it.call))
            for it in self.record.waiting
            if it.half == half
        )

    def _scaled_gradients(self, num_bytes: int, i: int) -> int:
        """Bytes of results of call `i`, of which gradients of its inputs are some."""
        sizes = self.record.bindings[i], self.sizes[i]
        return scaled_bytes(num_bytes, *map(self.parts[i].input_gradient_bytes, sizes))

    def _given(self, half: int) -> int:
        """Bytes of the gradients that `half` is given, if it is a backward."""
        return 0 if half >= 0 else self.parts[~half].given_bytes(self.sizes[~half])

    def _scaled(self, num_bytes: int, i: int, reader: int = -1) -> int:
        """Bytes of code after a half of call `i`, which makes the inputs of call `reader`, if any.

        Rows that it chooses may be more where the outputs of call `i` are as many.
        """
        measured = self.parts[i].output_bytes(self.record.bindings[i])
        found = scaled_bytes(num_bytes, measured, self.parts[i].output_bytes(self.sizes[i]))
        if reader < 0:
            return found
        inputs = (
            made_inputs(self.record, reader, self.parts[reader], size)
            for size in (self.record.bindings[reader], self.sizes[reader])
        )
        return max(found, grown_bytes(num_bytes, *inputs))


def made_inputs(record: StepRecord, i: int, part: PlannedPart, size: Binding) -> MadeInputs:
    """The inputs of call `i` of `record` at this `size`."""
    all_bytes = part.input_bytes(size)
    return MadeInputs(all_bytes, all_bytes - _shared_bytes(record, i, part, size))


def _shared_bytes(record: StepRecord, i: int, part: PlannedPart, size: Binding) -> int:
    measured, now = part.input_bytes(record.bindings[i]), part.input_bytes(size)
    shared = min(record.shared_bytes[i], measured)
    return now if shared == measured else min(shared, now)
