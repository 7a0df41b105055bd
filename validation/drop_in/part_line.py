"""One budget for a line of parts: which schedule of each, at the least time of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class PartCost(NamedTuple):
    """What a part takes under one of its schedules, beside what else is resident.

    Attributes
    ----------
    number
        The number of the schedule.
    kept_bytes
        Bytes between its halves: what the part saved, and its outputs.
    forward_bytes, backward_bytes
        The peak of each half; the latter with what was kept.
    time_s
        Seconds of both halves.
    """

    number: int
    kept_bytes: int
    forward_bytes: int
    backward_bytes: int
    time_s: float


@dataclass(frozen=True)
class CallInLine:
    """A part in its place in a step.

    Attributes
    ----------
    choices
        What it may take.
    shared_bytes
        Bytes of inputs that are outputs of earlier calls, and count there.
    before_bytes
        Resident when its forward begins: the step's, and what code before it has kept.
    between_bytes
        The most that code after its forward takes until the next part begins, in forward; of the
        last, until the first backward.
    backward_before_bytes
        Resident when its backward begins, beside what it and earlier calls have kept: gradients.
    """

    choices: tuple[PartCost, ...]
    shared_bytes: int
    before_bytes: int
    between_bytes: int
    backward_before_bytes: int

    def peak_bytes(self, kept_bytes: int, cost: PartCost) -> int:
        """The most while it runs, or the code after it, where earlier calls keep `kept_bytes`."""
        own = kept_bytes - self.shared_bytes
        return max(
            self.before_bytes + own + cost.forward_bytes,
            self.before_bytes + kept_bytes + cost.kept_bytes + self.between_bytes,
            self.backward_before_bytes + own + cost.backward_bytes,
        )


class LinePlan(NamedTuple):
    """A choice for each call.

    Attributes
    ----------
    costs
        What each call takes, in the order of the calls.
    peak_bytes, time_s
        The peak and the seconds of the step.
    """

    costs: tuple[PartCost, ...]
    peak_bytes: int
    time_s: float


_MOST_STATES = 4096

_State = tuple[int, float, int, Any]
"""Kept bytes, time, peak, and the choices: (those before, the last)."""


def divide(calls: Sequence[CallInLine], budget_bytes: int) -> LinePlan | None:
    """The choices of least time whose step stays within `budget_bytes`; ``None`` where none do.

    What a call may take depends on earlier ones through what they keep alone, so that the choices
    for a prefix which keep more and take longer are dropped. Where more than 4096 are left, those
    that keep nearly the same are merged, rounding up what is kept.

    Notes
    -----
    O(calls * choices * states) time.

    Examples
    --------
    >>> much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
    >>> call = CallInLine((much, little), 0, 0, 1, 0)
    >>> [cost.number for cost in divide([call, call], 16).costs]
    [1, 0]
    >>> divide([call, call], 11) is None
    True
    """
    states: list[_State] = [(0, 0.0, 0, ())]
    for call in calls:
        found: list[_State] = []
        for kept, time_s, peak, chosen in states:
            for cost in call.choices:
                here = call.peak_bytes(kept, cost)
                if here <= budget_bytes:
                    entry = (kept + cost.kept_bytes, time_s + cost.time_s, max(peak, here))
                    found.append((*entry, (chosen, cost)))
        states = _thinned(found, budget_bytes)
    if not states:
        return None
    _, time_s, peak, chosen = min(states, key=lambda state: (state[1], state[0]))
    costs: list[PartCost] = []
    while chosen:
        chosen, cost = chosen
        costs.append(cost)
    return LinePlan(tuple(reversed(costs)), peak, time_s)


def peak_of(calls: Sequence[CallInLine], costs: Sequence[PartCost]) -> int:
    """The peak of a step with these choices."""
    kept = most = 0
    for call, cost in zip(calls, costs, strict=True):
        most = max(most, call.peak_bytes(kept, cost))
        kept += cost.kept_bytes
    return most


def _thinned(found: list[_State], budget_bytes: int) -> list[_State]:
    found.sort(key=lambda state: (state[0], state[1]))
    kept: list[_State] = []
    for state in found:
        if not kept or state[1] < kept[-1][1]:
            kept.append(state)
    if len(kept) <= _MOST_STATES:
        return kept
    grain = max(1, budget_bytes // (_MOST_STATES // 2))
    rounded: dict[int, _State] = {}
    for state in kept:  # ascending bytes, descending time: the last of a cell is its quickest
        rounded[-(-state[0] // grain)] = (-(-state[0] // grain) * grain, *state[1:])
    return list(rounded.values())
