"""The calls of parts in a step whose blocks gather parameters: the bytes around each of them.

What PyTorch gathers, reduces and frees lies between the halves of parts, in the same order in every
step, whatever the schedules of the parts. So it is measured in whole steps, as the bytes at the
start of each half, and the most between two halves, beside what the parts keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..parts.part_line import CallInLine, PartCost
from ..records.outside_code import OutsideBytes
from ..records.step_calls import PartCall


class Mode(NamedTuple):
    """What a step finds and does: steps of another mode hold other bytes around their blocks.

    Attributes
    ----------
    finds_gathered
        Whether parameters are gathered still, from the step before.
    finds_waiting
        Whether gradients of that step wait for one which reduces them.
    finds_gradients
        Whether the shares have gradients.
    reduces, reduces_over_replicas
        Whether the step reduces its gradients over shards, and those over replicas.
    leaves_gathered
        Whether the backward of a block leaves its parameters gathered.
    """

    finds_gathered: bool = False
    finds_waiting: bool = False
    finds_gradients: bool = False
    reduces: bool = True
    reduces_over_replicas: bool = True
    leaves_gathered: bool = False

    @property
    def frees(self) -> bool:
        """Whether the step frees what it finds."""
        return self.finds_gathered or self.finds_waiting


class CallLevels(NamedTuple):
    """Bytes around a call, beyond those at the start of the step.

    Attributes
    ----------
    forward, backward
        At the start of each half: beside what earlier calls keep, this call's inputs, and in the
        backward what it keeps itself and the gradients that it is given.
    between
        Most bytes of the code after the forward, beside what earlier calls and this one keep.
    after
        Most bytes of the code after the backward, beside what earlier calls keep; of the first
        call, of the code before its forward, too.
    """

    forward: int
    between: int
    backward: int
    after: int


@dataclass(frozen=True)
class GatheredRecord:
    """Measurements of a step.

    Attributes
    ----------
    keys
        For each call: its part, and how often the step has called that before.
    numbers
        The schedules by which the calls ran.
    mode
        What the step found and did; another may keep other bytes.
    shared_bytes
        For each call, bytes of inputs that are outputs of earlier calls.
    levels
        The bytes around each call.
    passing_bytes
        Bytes of gradients, and of gathered parameters, that were there before the step.
    """

    keys: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    mode: Mode
    shared_bytes: tuple[int, ...]
    levels: tuple[CallLevels, ...]
    passing_bytes: int


def levels_of(
    calls: Sequence[PartCall],
    costs: Sequence[PartCost],
    marks: Sequence[tuple[str, int]],
    stretches: Sequence[OutsideBytes],
) -> tuple[CallLevels, ...] | None:
    """The bytes around each of `calls`, which ran at these `costs`; ``None`` if one has not run.

    Parameters
    ----------
    marks
        What was about to begin, and the number of its call.
    stretches
        The bytes before the first mark, and after each.
    """
    at = dict(zip(marks, stretches[1:], strict=True))
    found, earlier = [], 0
    for i, (call, cost) in enumerate(zip(calls, costs, strict=True)):
        halves = [at.get((what, i)) for what in HALVES]
        if None in halves:
            return None
        forward, between, backward, after = (half for half in halves if half is not None)
        own = call.part.input_bytes() - call.shared_bytes
        kept, given = cost.kept_bytes, call.part.given_bytes()
        before = stretches[0].top if not i else 0
        found.append(
            CallLevels(
                forward.level - earlier - own,
                between.top - earlier - kept,
                backward.level - earlier - kept - given - own,
                max(before, after.top - earlier),
            )
        )
        earlier += kept
    return tuple(found)


HALVES = ("forward", "after forward", "backward", "after backward")
"""The marks of a call, in their order."""


def least_of(records: Sequence[GatheredRecord]) -> tuple[CallLevels, ...]:
    """The least of several readings of one step: what else a thread holds only adds."""
    rows = zip(*(record.levels for record in records), strict=True)
    return tuple(CallLevels(*map(min, zip(*row, strict=True))) for row in rows)


def most_of(rows: Sequence[tuple[CallLevels, ...]]) -> tuple[CallLevels, ...]:
    """The most bytes around each call in several steps, whose calls kept other tensors."""
    return tuple(CallLevels(*map(max, zip(*row, strict=True))) for row in zip(*rows, strict=True))


def calls_in_line(
    record: GatheredRecord,
    levels: Sequence[CallLevels],
    choices: Sequence[tuple[PartCost, ...]],
    lasting_bytes: int,
) -> list[CallInLine]:
    """The calls of a step as a line, each with its choices, beside `lasting_bytes`."""
    resident = lasting_bytes + record.passing_bytes
    return [
        CallInLine(
            allowed,
            shared,
            resident + level.forward,
            level.between - level.forward,
            resident + level.backward,
            resident + level.after,
        )
        for allowed, shared, level in zip(choices, record.shared_bytes, levels, strict=True)
    ]
