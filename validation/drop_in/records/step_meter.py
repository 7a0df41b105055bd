"""The bytes of the code between the halves of parts, measured while a step runs."""

from __future__ import annotations

from collections.abc import Mapping

from ...measure.allocator import NO_BLOCKS
from ..parts.output_uses import Result, bytes_of
from .held_results import HeldResults
from .outside_code import OutsideBytes, OutsideMeter, joined
from .step_calls import PartCall, StepCalls
from .step_record import StepRecord, last_first

OVER = "backward is over"
"""The mark of the end of a backward, behind the gradients of parameters."""
APART, BACK = "half of another model", "after half of another model"
"""The marks around a half that a session of another model plans while no call is open here."""
_START = ("start", -1)
Mark = tuple[str, int]
"""What runs from a mark on, and the number of its call."""


class StepMeter:
    """The record of one step.

    Attributes
    ----------
    marks
        What ran from each mark on: ``"forward"``, ``"backward"``, ``"after forward"``,
        ``"after backward"`` of a call, or another word with the number -1.
    results
        The results of the calls, watched until the step ends.
    begins_early
        Whether the record began before the code before the first part.
    from_before
        What was there as the record began, and may go: as it does, its bytes are free.
    """

    def __init__(self, meter: OutsideMeter) -> None:
        self._meter = meter
        self.marks: list[Mark] = []
        self.results = HeldResults()
        self.begins_early = True
        self.from_before: tuple[Result, ...] = ()
        meter.start()

    def mark(self, what: str, number: int, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """Note what is about to run."""
        there = tuple(it for it in self.from_before if not it.is_gone)
        if len(there) < len(self.from_before):
            before, self.from_before = self.from_before, there
            self.release(bytes_of(before) - bytes_of(there))
        self._meter.mark(watched)
        self.marks.append((what, number))

    def release(self, num_bytes: int) -> None:
        """Count `num_bytes` from before the start as free from now on."""
        self._meter.release(num_bytes)

    def stop(self) -> list[OutsideBytes] | None:
        """The stretch before the first mark, and after each; ``None`` if another record began."""
        stretches = self._meter.stop()
        return stretches if len(stretches) == len(self.marks) + 1 else None

    @property
    def left_blocks(self) -> Mapping[int, int]:
        """Once it has stopped: bytes by address of what the last stretch holds of its own."""
        return self._meter.left_blocks

    @property
    def held_blocks(self) -> Mapping[int, int]:
        """Those of what the stretches before it have made, and what is there still."""
        return self._meter.held_blocks

    def behind(self, stretches: list[OutsideBytes]) -> OutsideBytes | None:
        """The stretch behind the last backward; ``None`` if other code has run there."""
        return stretches[-1] if self.marks[-1][0] == OVER else None

    def top_bytes(self, stretches: list[OutsideBytes]) -> int:
        """The most bytes beyond those at the start of the record, the last stretch apart."""
        at = self._in_front_of_backward(stretches)
        tops = [it.top for it in stretches[:-1]]
        # In front of the first backward results of the step before may go.
        tops[at] = stretches[at].level + stretches[at].net_most
        return max(0, *tops)

    def early_top_bytes(self, stretches: list[OutsideBytes]) -> int:
        """The most of them until the first backward begins."""
        at = self._in_front_of_backward(stretches)
        return max(0, *(it.top for it in stretches[:at]), stretches[at].level + stretches[at].most)

    def front_top_bytes(self, stretches: list[OutsideBytes]) -> int:
        """The most of them while all that the step before has left is there still."""
        at = self._in_front_of_backward(stretches)
        return max(0, *(it.top for it in stretches[:at]), stretches[at].level)

    def _in_front_of_backward(self, stretches: list[OutsideBytes]) -> int:
        """The number of the stretch before the first backward; without one, before the last."""
        words = [_START[0], *(what for what, _ in self.marks)][: len(stretches) - 1]
        return (words.index("backward") if "backward" in words else len(words)) - 1

    def front(self, first: OutsideBytes, made_before: int, *, is_resident: bool) -> OutsideBytes:
        """The bytes of the code before the first part, from those of the `first` stretch.

        Parameters
        ----------
        made_before
            Bytes of what the first part reads and that code has made: they count as its inputs.
        is_resident
            Whether what is left there counts as resident, as on a CUDA device.
        """
        left = 0 if is_resident else max(0, first.left - made_before)
        return OutsideBytes(first.most, left)

    def _without_others(self, stretches: list[OutsideBytes]) -> list[tuple[Mark, OutsideBytes]]:
        """The start and each mark, with what ran from there on but halves of other models."""
        found: list[tuple[Mark, OutsideBytes]] = []
        for mark, stretch in zip((_START, *self.marks), stretches, strict=True):
            if mark[0] in (APART, BACK):
                begun, before = found.pop()
                found.append((begun, joined(before, stretch, is_apart=mark[0] == APART)))
            else:
                found.append((mark, stretch))
        return found

    def before(self, stretches: list[OutsideBytes]) -> OutsideBytes:
        """The stretch before the first half."""
        return self._without_others(stretches)[0][1]

    def record(
        self,
        stretches: list[OutsideBytes],
        calls: StepCalls,
        front: OutsideBytes,
        passing_bytes: int,
    ) -> StepRecord | None:
        """The record of a step; ``None`` if some half ran twice, or a forward not once.

        A backward that never came counts as the last one.

        Parameters
        ----------
        front
            Bytes of the code before the first part.
        passing_bytes
            Bytes of results of earlier steps that were there as the step began.
        """
        after: dict[str, dict[int, OutsideBytes]] = {"after forward": {}, "after backward": {}}
        found = self._without_others(stretches)[1:]
        following = [*(mark for mark, _ in found[1:]), ("end", -1)]
        for ((what, number), stretch), then in zip(found, following, strict=True):
            if what in after:
                turns = what == "after forward" and then == ("backward", number)
                if turns:
                    stretch = net_bytes(calls.rows[number], stretch, passing_bytes)
                after[what][number] = stretch
        for number, call in enumerate(calls.rows):
            if not call.is_done:
                after["after backward"].setdefault(number, OutsideBytes(0, 0))
        every = range(len(calls.rows))
        if any(sorted(rows) != list(every) for rows in after.values()):
            return None
        order = calls.halves
        return StepRecord(
            calls.keys,
            tuple(call.binding for call in calls.rows),
            tuple(call.shared_bytes for call in calls.rows),
            tuple(after["after forward"][i] for i in every),
            tuple(after["after backward"][i] for i in every),
            front,
            order,
            tuple(call.trained for call in calls.rows),
            self.results.held_bytes(len(calls.rows)),
            self.results.waiting(),
            passing_bytes if order == last_first(len(calls.rows)) else 0,
            calls.beside,
        )


def net_bytes(call: PartCall, stretch: OutsideBytes, passing_bytes: int) -> OutsideBytes:
    """The bytes of the code between the halves of a call, beyond those of its outputs.

    Outputs that the code drops count as there throughout in the plan, and so do results of the step
    before. What the code takes is less by the bytes of those that are gone by then.
    """
    gone, also_gone = (call.gone_bytes(read_inside=inside) for inside in (False, True))
    if call.part.device == "cuda":  # another schedule may keep what ops of the part read
        most = stretch.net_most + passing_bytes + also_gone
        left = stretch.net_left + passing_bytes + also_gone + gone
    else:
        # The record tells the release of outputs, which it has seen come, and perhaps that of some
        # of the results of the step before.
        told = min(passing_bytes, max(0, stretch.released - gone))
        most = max(passing_bytes, stretch.net_most + told)
        left = stretch.net_left + stretch.released
    return OutsideBytes(most, max(0, left), stretch.level, stretch.top)
