"""The steps of a model whose blocks gather, before the budget is divided among its parts."""

from __future__ import annotations

from schedsim.units import format_bytes

from ..parts.part_line import LinePlan
from ..records.step_record import Key
from .gathered_calls import GatheredRecord
from .ordered_line import OrderedLine

_GRAIN = 1000
"""The part of a peak to which the least one is found."""


class GatheredFirstSteps:
    """Schedules of least peak, as far as one reading of a step tells it.

    The first reading is of a step with a made-up loss, later ones are of steps of the loop. What
    communicates may hold a buffer for longer, so that the budget is divided by several readings.

    Attributes
    ----------
    record
        The reading; ``None`` before any.
    is_new
        Whether no schedules were chosen by it.
    numbers
        The schedule of each call.
    peak_bytes, budget_bytes
        The peak of a step by them, and the budget; ``None`` before any was read.
    reserve_bytes
        What the loss of the loop may take beside, until one of its steps was read.
    """

    def __init__(self) -> None:
        self.record: GatheredRecord | None = None
        self.is_new = False
        self.numbers: dict[Key, int] = {}
        self.peak_bytes: int | None = None
        self.budget_bytes: int | None = None
        self.reserve_bytes = 0

    def see(self, record: GatheredRecord, reserve_bytes: int = 0) -> None:
        """Take in a reading."""
        self.record, self.is_new, self.reserve_bytes = record, True, reserve_bytes

    @property
    def excess(self) -> str:
        """That a step by these schedules may exceed the budget, in words; empty if it does not."""
        if self.peak_bytes is None or self.budget_bytes is None:
            return "keep least, and may exceed it: none was measured, as under another profiler"
        if self.peak_bytes + self.reserve_bytes <= self.budget_bytes:
            return ""
        loss = " without the loop's loss, which is not known yet" if self.reserve_bytes else ""
        return (
            f"take about {format_bytes(self.peak_bytes)} on this rank, as measured{loss}: they may "
            f"exceed the budget, {format_bytes(self.budget_bytes)}"
        )

    def take(self, plan: LinePlan, budget_bytes: int) -> None:
        """Take the choices of `plan` for the calls of the step that was read."""
        assert self.record is not None
        self.is_new = False
        self.peak_bytes, self.budget_bytes = plan.peak_bytes, budget_bytes
        rows = zip(self.record.keys, plan.costs, strict=True)
        self.numbers = {key: cost.number for key, cost in rows}


def least_peak(line: OrderedLine) -> LinePlan:
    """The choices of least peak, to a thousandth of it. O(log) divisions of the line.

    Examples
    --------
    >>> from schedsim.validation.drop_in.plans.ordered_line import plain_line
    >>> from schedsim.validation.drop_in.parts.part_line import CallInLine, PartCost
    >>> much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
    >>> call = CallInLine((much, little), 0, 0, 1, 0)
    >>> found = least_peak(plain_line([call, call]))
    >>> [cost.number for cost in found.costs], found.peak_bytes
    ([1, 0], 12)
    """
    low, best = 0, line.plan_of(tuple(call.choices[0] for call in line.calls))
    while best.peak_bytes - low > max(1, best.peak_bytes // _GRAIN):
        middle = (low + best.peak_bytes) // 2
        found = line.divide(middle)
        if found is None:
            low = middle
        else:
            best = found
    return best
