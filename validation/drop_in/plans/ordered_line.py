"""A line of calls whose halves run in any order: their schedules, within one budget.

A step may run its backwards in another order than from the last call to the first: micro-batches of
a pipeline run first in, first out, or forwards and backwards in turn. What other calls keep during
a half follows from the order. The programme over the line (`divide`) knows one order, in which a
call depends on the calls before it alone. So it takes the calls in the reverse order of their
backwards; its choices are replayed in the true order, and its budget is moved until they fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..parts.part_line import CallInLine, LinePlan, PartCost, divide, peak_of
from ..records.step_record import last_first

_ATTEMPTS = 12


class CallRoom(NamedTuple):
    """Most bytes that one call may take, beside what others take.

    Attributes
    ----------
    forward_bytes, backward_bytes
        During its halves.
    kept_bytes
        Between them.
    """

    forward_bytes: int
    kept_bytes: int
    backward_bytes: int


@dataclass(frozen=True)
class OrderedLine:
    """Calls of parts, and the order in which their halves run.

    Attributes
    ----------
    calls
        The calls, in the order of their forwards.
    order
        The halves: `i` for the forward of call i, ``~i`` for its backward.
    keys
        For each call, what its schedule is found by: calls with one key run by one schedule.
    """

    calls: tuple[CallInLine, ...]
    order: tuple[int, ...]
    keys: tuple[Hashable, ...]

    @property
    def is_plain(self) -> bool:
        """Whether backward runs from the last call to the first, each by its own schedule."""
        each = len(set(self.keys)) == len(self.keys)
        return each and self.order == last_first(len(self.calls))

    def peak_of(self, costs: Sequence[PartCost]) -> int:
        """The peak of a step in which the calls have these costs.

        Examples
        --------
        >>> much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
        >>> calls = (CallInLine((much, little), 0, 0, 1, 0),) * 2
        >>> OrderedLine(calls, (0, 1, -2, -1), (0, 1)).peak_of([little, much])
        12
        >>> OrderedLine(calls, (0, 1, -1, -2), (0, 1)).peak_of([little, much])
        20
        """
        kept = most = 0
        for half in self.order:
            if half >= 0:
                most = max(most, self.calls[half].forward_peak(kept, costs[half]))
                kept += costs[half].kept_bytes
            else:
                kept -= costs[~half].kept_bytes
                most = max(most, self.calls[~half].backward_peak(kept, costs[~half]))
        return most

    def room_of(self, i: int, costs: Sequence[PartCost], budget_bytes: int) -> CallRoom:
        """The room of call `i` within `budget_bytes`, if the other calls have these costs.

        Examples
        --------
        >>> much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
        >>> calls = (CallInLine((much, little), 0, 0, 1, 0),) * 2
        >>> OrderedLine(calls, (0, 1, -2, -1), (0, 1)).room_of(0, [little, little], 20)
        CallRoom(forward_bytes=20, kept_bytes=8, backward_bytes=20)
        """
        kept, is_open = 0, False
        forward = between = backward = budget_bytes
        for half in self.order:
            j = max(half, ~half)
            call, cost = self.calls[j], costs[j]
            if half == i:
                is_open = True
                forward = budget_bytes - call.before_bytes - kept + call.shared_bytes
                between = budget_bytes - call.before_bytes - kept - call.between_bytes
            elif j == i:
                is_open = False
                backward = budget_bytes - call.backward_before_bytes - kept + call.shared_bytes
            elif half >= 0:
                if is_open:
                    between = min(between, budget_bytes - call.forward_peak(kept, cost))
                kept += cost.kept_bytes
            else:
                kept -= cost.kept_bytes
                if is_open:
                    between = min(between, budget_bytes - call.backward_peak(kept, cost))
        return CallRoom(forward, between, backward)

    def divide(self, budget_bytes: int) -> LinePlan | None:
        """The quickest choices found that stay within `budget_bytes`; ``None`` if none are found.

        In the plain order the programme is exact. In another, a dozen budgets of the programme are
        tried, and for each part the one schedule for all of its calls: a choice that fits is found
        wherever one schedule a part fits.
        """
        if self.is_plain:
            return divide(self.calls, budget_bytes)
        found = [self.plan_of(costs) for costs in self._alike()]
        low, high = 0, self._store_all_bytes()
        asked = min(budget_bytes, high)
        for _ in range(_ATTEMPTS):
            costs = self._programme(asked)
            plan = None if costs is None else self.plan_of(costs)
            if plan is not None:
                found.append(plan)
            if plan is None or plan.peak_bytes <= budget_bytes:
                low = asked
            else:
                high = asked
            if high - low <= max(1, budget_bytes // 500):
                break
            asked = (low + high) // 2
        fitting = [plan for plan in found if plan.peak_bytes <= budget_bytes]
        return min(fitting, key=lambda plan: plan.time_s, default=None)

    def store_all_peak(self) -> int:
        """The peak of the step in which every call takes its first choice, which is store-all."""
        return self.peak_of([call.choices[0] for call in self.calls])

    def _store_all_bytes(self) -> int:
        """A budget within which the programme keeps all."""
        return peak_of(self.calls, [call.choices[0] for call in self.calls])

    def _programme(self, budget_bytes: int) -> tuple[PartCost, ...] | None:
        last = [~half for half in reversed(self.order) if half < 0]
        found = divide([self.calls[i] for i in last], budget_bytes)
        if found is None:
            return None
        costs = dict(zip(last, found.costs, strict=True))
        return self._unified([costs[i] for i in range(len(self.calls))])

    def _unified(self, costs: Sequence[PartCost]) -> tuple[PartCost, ...]:
        """`costs`, in which calls of one key take the cost that keeps least of theirs."""
        least: dict[Hashable, PartCost] = {}
        for key, cost in zip(self.keys, costs, strict=True):
            known = least.setdefault(key, cost)
            if (cost.kept_bytes, cost.time_s) < (known.kept_bytes, known.time_s):
                least[key] = cost
        return tuple(least[key] for key in self.keys)

    def _alike(self) -> list[tuple[PartCost, ...]]:
        """Choices in which all calls keep about as much, from their least to their most."""
        ranked = [sorted(call.choices, key=lambda cost: cost.kept_bytes) for call in self.calls]
        most = max(map(len, ranked))
        rows = [[row[min(k, len(row) - 1)] for row in ranked] for k in range(most)]
        return [self._unified(row) for row in rows]

    def plan_of(self, costs: tuple[PartCost, ...]) -> LinePlan:
        """The plan by which the calls have these costs."""
        return LinePlan(costs, self.peak_of(costs), sum(cost.time_s for cost in costs))


def least_budget(line: OrderedLine, too_little: int) -> int:
    """A budget that `line` fits, above the least one found by at most 1 % of `too_little`.

    Parameters
    ----------
    too_little
        A positive budget that the calls do not fit.

    Notes
    -----
    O(log(least / too_little)) divisions of the line.
    """
    step, low, high = too_little // 100, too_little, 2 * too_little
    while line.divide(high) is None:
        high *= 2
    while high - low > max(step, 1):
        middle = (low + high) // 2
        if line.divide(middle) is None:
            low = middle
        else:
            high = middle
    return high


def leanest(line: OrderedLine) -> LinePlan:
    """The choices of a budget that is least to within a hundredth.

    Notes
    -----
    O(log(least / most)) divisions of the line.

    Examples
    --------
    >>> much, little = PartCost(0, 8, 9, 10, 1.0), PartCost(1, 2, 9, 12, 1.5)
    >>> line = plain_line([CallInLine((much, little), 0, 0, 1, 0)] * 2)
    >>> [cost.number for cost in leanest(line).costs]
    [1, 0]
    """
    high = max(1, line.store_all_peak())
    found = line.divide(high)
    assert found is not None
    low = 0
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        less = line.divide(middle)
        if less is None:
            low = middle
        else:
            found, high = less, middle
    return found


def plain_line(calls: Sequence[CallInLine]) -> OrderedLine:
    """`calls` whose backward runs from the last to the first."""
    return OrderedLine(tuple(calls), last_first(len(calls)), tuple(range(len(calls))))
