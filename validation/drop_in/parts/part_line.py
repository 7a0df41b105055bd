"""One budget for a line of parts: a schedule for each part, at the least total time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class PartCost(NamedTuple):
    """The bytes and the time of a part under one of its schedules, beside what is resident.

    Attributes
    ----------
    number
        The number of the schedule.
    kept_bytes
        Bytes between the halves: what the part saved, and its outputs.
    forward_bytes, backward_bytes
        The peak of each half; the backward's with what was kept.
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
    """A call of a part, in its place in a step.

    Attributes
    ----------
    choices
        Schedules that the call may take, with their costs.
    shared_bytes
        Bytes of inputs that are outputs of earlier calls, and are counted there.
    before_bytes
        Bytes resident when the forward begins: the step's, and what earlier code has kept.
    between_bytes
        Most bytes that the code after the forward takes until the next part begins; after the last
        call, until the first backward.
    backward_before_bytes
        Bytes resident when the backward begins, beside what this and earlier calls have kept.
    after_bytes
        Most bytes of the code after the backward, beside what earlier calls have kept.
    """

    choices: tuple[PartCost, ...]
    shared_bytes: int
    before_bytes: int
    between_bytes: int
    backward_before_bytes: int
    after_bytes: int = 0

    def forward_peak(self, kept_bytes: int, cost: PartCost) -> int:
        """Most bytes during the forward and the code after it, if others keep `kept_bytes`."""
        return max(
            self.before_bytes + kept_bytes - self.shared_bytes + cost.forward_bytes,
            self.before_bytes + kept_bytes + cost.kept_bytes + self.between_bytes,
        )

    def backward_peak(self, kept_bytes: int, cost: PartCost) -> int:
        """Most bytes during the backward and the code after it, if others keep `kept_bytes`."""
        return max(
            self.backward_before_bytes + kept_bytes - self.shared_bytes + cost.backward_bytes,
            kept_bytes + self.after_bytes,
        )

    def peak_bytes(self, kept_bytes: int, cost: PartCost) -> int:
        """Most bytes during both, where the same calls keep bytes in both."""
        return max(self.forward_peak(kept_bytes, cost), self.backward_peak(kept_bytes, cost))


class LinePlan(NamedTuple):
    """A choice for each call.

    Attributes
    ----------
    costs
        The cost of each call, in the order of the calls.
    peak_bytes, time_s
        The peak and the seconds of the step.
    """

    costs: tuple[PartCost, ...]
    peak_bytes: int
    time_s: float


_MOST_STATES = 4096

_State = tuple[int, float, int, Any]
"""Kept bytes, time, peak, and the choices as a pair (earlier choices, last choice)."""


def divide(calls: Sequence[CallInLine], budget_bytes: int) -> LinePlan | None:
    """The choices of least time whose step stays within `budget_bytes`; ``None`` if there are none.

    A call depends on earlier calls only through the bytes that they keep. So the choices for a
    prefix that keep more and take longer than others are dropped. Where more than 4096 are left,
    choices that keep nearly the same are merged, with the kept bytes rounded up.

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
    """The peak of a step in which the calls have these costs."""
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
