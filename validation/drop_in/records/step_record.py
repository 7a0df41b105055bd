"""Measurements of a step of parts, and the bytes of the code around the parts at other sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..parts.part_line import PartCost
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from .held_results import Waiting
from .outside_code import OutsideBytes, most_of

NOTHING = OutsideBytes(0, 0)

Key = tuple[int, int]
"""Index of a part, and how often the step has called it before."""


class StepKind(NamedTuple):
    """What tells the kind of a step as it begins.

    Attributes
    ----------
    first
        The part that it calls first.
    beside
        Numbers of the other models whose steps are open: it lies within theirs.
    """

    first: int
    beside: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StepRecord:
    """The parts that a step called, and the bytes of the code between them.

    Attributes
    ----------
    bindings
        For each call, the numbers for its open sizes.
    shared_bytes
        For each call, bytes of inputs that are outputs of earlier calls, or there before the step.
    after_forward
        For each call, bytes of the code after its forward, up to the next part.
    after_backward
        For each call, bytes of the code after its backward, up to the next part in backward.
    before
        Bytes of the code before the first call, beyond those of the first call's inputs.
    order
        The halves as they ran: `i` for the forward of call i, ``~i`` for its backward. Empty where
        all forwards come first, and the backward of a later call before that of an earlier one.
    trained
        For each call, which parameters it trains: calls with the same number add to the same
        gradients. Empty where each call trains its own.
    held_results
        For each call, bytes of its outputs and of gradients of its inputs that are held to the end.
    waiting
        Such results of calls whose backward is over that are there as other halves begin, and go
        before the end.
    passing_bytes
        Bytes of results of the step before, which all forwards find, and no backward.
    beside
        Numbers of the other models whose steps were open as it began.
    """

    keys: tuple[Key, ...]
    bindings: tuple[Binding, ...]
    shared_bytes: tuple[int, ...]
    after_forward: tuple[OutsideBytes, ...]
    after_backward: tuple[OutsideBytes, ...]
    before: OutsideBytes = NOTHING
    order: tuple[int, ...] = ()
    trained: tuple[int, ...] = ()
    held_results: tuple[int, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    passing_bytes: int = 0
    beside: frozenset[int] = frozenset()

    @property
    def kind(self) -> StepKind:
        """The kind of the step, as its beginning tells it."""
        return StepKind(self.keys[0][0], self.beside)

    @property
    def halves(self) -> tuple[int, ...]:
        """`order`, also where it is left out."""
        return self.order or last_first(len(self.keys))

    def is_like(self, other: StepRecord) -> bool:
        """Whether the same calls ran, in the same order, within steps of the same models."""
        same = self.keys == other.keys and self.beside == other.beside
        return same and self.halves == other.halves

    def most_with(self, other: StepRecord) -> StepRecord:
        """The most of both records, which are alike and of the same sizes."""
        passing = max(self.passing_bytes, other.passing_bytes)
        mine, its = self._beside(passing), other._beside(passing)
        held = self.held_results or other.held_results
        if self.held_results and other.held_results:
            held = tuple(map(max, self.held_results, other.held_results))
        return replace(
            self,
            after_forward=tuple(map(most_of, mine, its)),
            after_backward=tuple(map(most_of, self.after_backward, other.after_backward)),
            before=most_of(self.before, other.before),
            held_results=held,
            waiting=_most_waiting(self.waiting, other.waiting),
            passing_bytes=passing,
        )

    def _beside(self, passing_bytes: int) -> tuple[OutsideBytes, ...]:
        """`after_forward` beside so many bytes of results of the step before, or more."""
        grown = passing_bytes - self.passing_bytes
        if not grown:
            return self.after_forward
        more = grown if self.passing_bytes else 0
        return tuple(
            it._replace(most=max(it.most + more, passing_bytes)) for it in self.after_forward
        )

    def differs_from(self, other: StepRecord) -> bool:
        """Whether plans for a step like `other` may differ from those for this one."""
        if (self.passing_bytes, self.held_results) != (other.passing_bytes, other.held_results):
            return True
        if set(self.waiting) != set(other.waiting):
            return True
        mine, its = (
            [it[:2] for it in (one.before, *one.after_forward, *one.after_backward)]
            for one in (self, other)
        )
        return mine != its


def _most_waiting(some: tuple[Waiting, ...], others: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
    """Where the same results wait by the same half, the more of both."""
    most: dict[tuple[int, int], Waiting] = {}
    for it in sorted((*some, *others), key=lambda it: it.num_bytes):
        most[it.half, it.call] = it
    return tuple(most.values())


def last_first(num_calls: int) -> tuple[int, ...]:
    """The order of a step whose backward runs from its last call to its first.

    Examples
    --------
    >>> last_first(2)
    (0, 1, -2, -1)
    """
    return (*range(num_calls), *(~i for i in reversed(range(num_calls))))


def scaled_bytes(num_bytes: int, measured: int, now: int) -> int:
    """Bytes of code whose inputs had `measured` bytes when it was measured, and have `now` bytes.

    The result is never smaller for smaller inputs: part of the bytes may not depend on them.

    Examples
    --------
    >>> scaled_bytes(10, 4, 6), scaled_bytes(10, 4, 2)
    (15, 10)
    """
    return num_bytes if now <= measured else math.ceil(num_bytes * now / max(1, measured))


class MadeInputs(NamedTuple):
    """Bytes of the inputs of a call, and of those that code between graphs has made for it."""

    all_bytes: int
    made_bytes: int


def grown_bytes(num_bytes: int, measured: MadeInputs, now: MadeInputs) -> int:
    """Bytes of code between graphs that makes inputs of the next one, at other sizes of these.

    In proportion to all inputs, and by as much more as it makes at least: it may choose more rows
    of what stays as large.

    Examples
    --------
    >>> grown_bytes(10, MadeInputs(4, 0), MadeInputs(6, 0))
    15
    >>> grown_bytes(10, MadeInputs(40, 4), MadeInputs(60, 24))
    30
    >>> grown_bytes(0, MadeInputs(4, 4), MadeInputs(6, 6))
    0
    """
    if not num_bytes:
        return 0
    more = max(0, now.made_bytes - measured.made_bytes)
    return max(num_bytes + more, scaled_bytes(num_bytes, measured.all_bytes, now.all_bytes))


def bytes_between_halves(
    record: StepRecord, part: PlannedPart, binding: Binding, passing_bytes: int = 0
) -> tuple[int, int]:
    """Bytes of the code between the halves of a step's only part, beside the given gradients.

    Parameters
    ----------
    passing_bytes
        Bytes of results of the step before, which stand beside these.

    Returns
    -------
    (held, most)
        What the caller still holds when backward begins, such as a loss, logged values, or what the
        code before the part has kept, and the most that the code takes beyond that.
    """
    measured = record.bindings[0]
    given, after = part.given_bytes(measured), record.after_forward[0]
    sizes = part.output_bytes(measured), part.output_bytes(binding)
    held = scaled_bytes(max(0, after.left - given), *sizes)
    most = scaled_bytes(max(0, after.most - given), *sizes)
    most = beside_passing(record, most - held, passing_bytes)
    return held + scaled_bytes(record.before.left, *sizes), most


def beside_passing(record: StepRecord, most: int, passing_bytes: int) -> int:
    """The `most` bytes of the code between the halves, beside results of the step before.

    They were `record.passing_bytes` when the code was measured, and counted as its own. Where there
    were none, they are taken to go before the code takes anything.

    Examples
    --------
    >>> beside_passing(StepRecord((), (), (), (), (), passing_bytes=4), 10, 6)
    6
    """
    grown = passing_bytes - record.passing_bytes if record.passing_bytes else 0
    return max(0, most + max(0, grown) - passing_bytes)


def bytes_by_itself(
    record: StepRecord, part: PlannedPart, binding: Binding, passing_bytes: int = 0
) -> int:
    """The most that the code around a step's only part takes, whatever the part's schedule.

    Before its forward, and after its backward beside what that has left.
    """
    sizes = part.output_bytes(record.bindings[0]), part.output_bytes(binding)
    left = part.gradient_bytes + part.input_gradient_bytes(binding)
    left += scaled_bytes(record.before.left + record.after_backward[0].most, *sizes)
    before = scaled_bytes(record.before.most, *sizes) + passing_bytes
    return part.input_bytes(binding) + max(left, before)


def single_peak_bytes(
    record: StepRecord, part: PlannedPart, binding: Binding, cost: PartCost, passing_bytes: int = 0
) -> int:
    """The peak of a step of one part at the sizes of `binding`, beside what is resident.

    Parameters
    ----------
    cost
        The cost of the part at these sizes, by the schedule in question.
    """
    between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
    held, outside = bytes_between_halves(record, part, binding, passing_bytes)
    forward = passing_bytes + max(cost.forward_bytes, between + outside)
    most = held + max(forward, cost.backward_bytes)
    return max(most, bytes_by_itself(record, part, binding, passing_bytes))
