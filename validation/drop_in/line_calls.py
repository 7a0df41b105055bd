"""The calls of a step of several parts as a line, and the budgets that the line fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .part_line import CallInLine, PartCost, divide
from .part_sizes import Binding
from .step_record import StepRecord, scaled_bytes
from .traced_part import TracedPart


class AroundCall(NamedTuple):
    """Bytes around a call of a part, independent of the schedules of the parts.

    Attributes
    ----------
    shared
        Bytes of inputs that are outputs of earlier calls, and are counted there.
    before
        Bytes resident when the forward of the call begins: the step's, and what earlier code holds.
    between
        Most bytes that the code after the forward takes until the next part begins; after the last
        call, until the first backward.
    later
        Bytes that later backwards leave before this backward begins, such as gradients.
    at_end
        Bytes that the code after the last forward still holds when backward begins.
    behind
        Most bytes of the code after this backward until the next part's, with what backward has
        left by then, its gradients of inputs among them.
    """

    shared: int
    before: int
    between: int
    later: int
    at_end: int
    behind: int = 0


def bytes_around_calls(
    record: StepRecord,
    parts: Sequence[TracedPart],
    sizes: Sequence[Binding],
    resident_bytes: int,
) -> list[AroundCall]:
    """The bytes around each call of `record` at `sizes`, beside `resident_bytes`; O(calls).

    Parameters
    ----------
    parts, sizes
        For each call: its part, and the values of the part's open sizes.
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
    shared = [_shared_bytes(record, i, part, sizes[i]) for i, part in enumerate(parts)]
    # What the step is given is there in every call; the first call reads it.
    # So is what the code before the first call has kept; its own most stands with the first call.
    left, most_before = scaled(record.before.left, 0), scaled(record.before.most, 0)
    before, found = resident_bytes + shared[0] + left, []
    for i, part in enumerate(parts):
        most = scaled(record.after_forward[i].most, i)
        behind = scaled(record.after_backward[i].most, i) + part.input_gradient_bytes(sizes[i])
        found.append(
            AroundCall(
                shared=shared[i],
                before=before,
                between=max(0, most - given) + given if i == end else max(0, most),
                later=later[i + 1],
                at_end=at_end,
                behind=max(
                    behind + later[i + 1] + part.gradient_bytes, 0 if i else most_before - left
                ),
            )
        )
        before += scaled(record.after_forward[i].left, i)
    return found


def _shared_bytes(record: StepRecord, i: int, part: TracedPart, size: Binding) -> int:
    measured, now = part.input_bytes(record.bindings[i]), part.input_bytes(size)
    shared = min(record.shared_bytes[i], measured)
    return now if shared == measured else min(shared, now)


def call_in_line(choices: tuple[PartCost, ...], around: AroundCall) -> CallInLine:
    """A call that may take any of `choices`, with the bytes around it."""
    return CallInLine(
        choices,
        around.shared,
        around.before,
        around.between,
        around.before + around.later + around.at_end,
        around.before + around.behind + around.at_end,
    )


def store_all_peak(calls: Sequence[CallInLine]) -> int:
    """The peak of the step in which every call takes its first choice, which is store-all."""
    every = divide([replace(call, choices=call.choices[:1]) for call in calls], 2**62)
    return every.peak_bytes if every is not None else 0


def least_budget(calls: Sequence[CallInLine], too_little: int) -> int:
    """A budget that `calls` fit, above the least one by at most 1 % of `too_little`.

    Parameters
    ----------
    too_little
        A positive budget that the calls do not fit.

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
