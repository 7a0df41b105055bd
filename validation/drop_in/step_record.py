"""Measurements of a step of parts, and the bytes of the code around the parts at other sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .outside_code import OutsideBytes
from .part_line import PartCost
from .part_sizes import Binding
from .traced_part import TracedPart

Key = tuple[int, int]
"""Index of a part, and how often the step has called it before."""


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
    """

    keys: tuple[Key, ...]
    bindings: tuple[Binding, ...]
    shared_bytes: tuple[int, ...]
    after_forward: tuple[OutsideBytes, ...]
    after_backward: tuple[OutsideBytes, ...]


def scaled_bytes(num_bytes: int, measured: int, now: int) -> int:
    """Bytes of code whose inputs had `measured` bytes when it was measured, and have `now` bytes.

    The result is never smaller for smaller inputs: part of the bytes may not depend on them.

    Examples
    --------
    >>> scaled_bytes(10, 4, 6), scaled_bytes(10, 4, 2)
    (15, 10)
    """
    return num_bytes if now <= measured else math.ceil(num_bytes * now / max(1, measured))


def bytes_between_halves(record: StepRecord, part: TracedPart, binding: Binding) -> tuple[int, int]:
    """Bytes of the code between the halves of a step's only part, beside the given gradients.

    Returns
    -------
    (held, most)
        What the caller still holds when backward begins, such as a loss or logged values, and the
        most that the code takes beyond that.
    """
    measured = record.bindings[0]
    given, after = part.given_bytes(measured), record.after_forward[0]
    sizes = part.output_bytes(measured), part.output_bytes(binding)
    held = scaled_bytes(max(0, after.left - given), *sizes)
    return held, max(0, scaled_bytes(max(0, after.most - given), *sizes) - held)


def single_peak_bytes(
    record: StepRecord, part: TracedPart, binding: Binding, cost: PartCost
) -> int:
    """The peak of a step of one part at the sizes of `binding`, beside what is resident.

    Parameters
    ----------
    cost
        The cost of the part at these sizes, by the schedule in question.
    """
    between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
    held, outside = bytes_between_halves(record, part, binding)
    return held + max(cost.forward_bytes, between + outside, cost.backward_bytes)
