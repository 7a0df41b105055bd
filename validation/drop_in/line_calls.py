"""The calls of a step of several parts as a line, and which budgets the line fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .part_line import CallInLine, PartCost, divide
from .part_sizes import Binding
from .step_record import StepRecord, scaled_bytes
from .traced_part import TracedPart


class AroundCall(NamedTuple):
    """Bytes that a call of a part finds, whatever the schedules of the parts.

    Attributes
    ----------
    shared
        Inputs of the call that are outputs of earlier calls, and count there.
    before
        Resident when its forward begins: the step's, and what code before it holds.
    between
        The most that the code after its forward takes, until the next part begins; of the last
        call, until the first backward.
    later
        What later backwards leave before its own begins: gradients and the like.
    at_end
        What is left of the code after the last forward when backward begins.
    """

    shared: int
    before: int
    between: int
    later: int
    at_end: int


def bytes_around_calls(
    record: StepRecord,
    parts: Sequence[TracedPart],
    sizes: Sequence[Binding],
    resident_bytes: int,
) -> list[AroundCall]:
    """What each call of `record` finds around it at `sizes`, beside `resident_bytes`; O(calls).

    Parameters
    ----------
    parts, sizes
        Of each call: its part, and the sizes that its open dimensions take.
    """

    def scaled(num_bytes: int, i: int) -> int:
        measured = parts[i].output_bytes(record.bindings[i])
        return scaled_bytes(num_bytes, measured, parts[i].output_bytes(sizes[i]))

    later = [0] * (len(parts) + 1)
    for i in reversed(range(len(parts))):
        left = scaled(record.after_backward[i].left, i) if i else 0
        later[i] = later[i + 1] + parts[i].gradient_bytes + left
    end = len(parts) - 1
    given = parts[end].given_bytes(sizes[end])
    at_end = max(0, scaled(record.after_forward[-1].left, end) - given)
    before, found = resident_bytes, []
    for i, part in enumerate(parts):
        most = scaled(record.after_forward[i].most, i)
        found.append(
            AroundCall(
                shared=min(record.shared_bytes[i], part.input_bytes(sizes[i])),
                before=before,
                between=max(0, most - given) + given if i == end else max(0, most),
                later=later[i + 1],
                at_end=at_end,
            )
        )
        before += scaled(record.after_forward[i].left, i)
    return found


def call_in_line(choices: tuple[PartCost, ...], around: AroundCall) -> CallInLine:
    """A call that may take `choices`, in its place."""
    return CallInLine(
        choices,
        around.shared,
        around.before,
        around.between,
        around.before + around.later + around.at_end,
    )


def store_all_peak(calls: Sequence[CallInLine]) -> int:
    """The peak of the step in which every call takes its first choice, which stores all."""
    every = divide([replace(call, choices=call.choices[:1]) for call in calls], 2**62)
    return every.peak_bytes if every is not None else 0


def least_budget(calls: Sequence[CallInLine], too_little: int) -> int:
    """A budget that `calls` fit, within 1 % of `too_little` of the least one.

    Parameters
    ----------
    too_little
        A positive budget that they do not fit.

    Notes
    -----
    O(log(least / too_little)) divisions of the line.
    """
    step, low, high = too_little // 100, too_little, 2 * too_little
    while divide(calls, high) is None:
        high *= 2
    while high - low > max(step, 1):
        middle = (low + high) // 2
        if divide(calls, middle) is None:
            low = middle
        else:
            high = middle
    return high
