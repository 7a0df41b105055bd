"""Schedules for calls whose sizes differ from those planned for: evaluated, or searched beside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from schedsim.plans.plan import Plan

from ..parts.part_line import PartCost
from ..parts.part_sizes import Binding
from ..parts.traced_part import TracedPart
from ..records.step_record import Key
from .background_search import BackgroundSearch
from .known_steps import KnownSteps
from .schedule_search import ScheduleSearch

_OTHER_SHARE = 7 / 8
"""Share of the budget within which another schedule is searched, with which it is compared."""
_AHEAD = (1.5, 1.25, 1.1)
"""Sizes, beside the largest seen, for which schedules are searched before such sizes come."""
_LONGER_KEPT, _SLOW = 1.1, 1.01
"""Growth of sizes and overhead from which on a better schedule is searched in the background."""
_SCRATCH_BYTES = 1 << 12
"""Bytes of a comparison of two schedules, at a time when little else is resident."""


class _FoundBeside(NamedTuple):
    """The result of a search beside the loop.

    Attributes
    ----------
    code
        That of the schedule, which takes a while to make.
    is_ahead
        Whether the sizes have not come yet.
    """

    key: Key
    binding: Binding
    plan: Plan
    code: Any
    is_ahead: bool


class OtherSizes:
    """Chooses among the known schedules by their peaks at a call's sizes, and adds to them."""

    def __init__(
        self, known: KnownSteps, parts: Sequence[TracedPart], search: ScheduleSearch
    ) -> None:
        self._known, self._parts, self._search = known, parts, search
        self._ahead: set[tuple[Key, Binding]] = set()
        self._beside: BackgroundSearch[_FoundBeside] = BackgroundSearch()

    def fitting(self, key: Key, binding: Binding) -> int | None:
        """The quickest known schedule with which a call of these sizes stays within the budget."""
        quickest = self._parts[key[0]].quickest_first()
        return next(self._fitting(key, binding, quickest), None)

    def without_comparison(self, key: Key, binding: Binding, number: int) -> int:
        """`number`, or the quickest one that fits and need not be compared in a step that is new.

        A comparison takes two steps, which is more than any schedule takes longer than another.
        """
        part = self._parts[key[0]]
        trust = part.trust
        if self._known.options.check == "never" or not trust.avoids(number, binding):
            return number
        compared = [one for one in part.quickest_first() if trust.is_compared(one)]
        return next(self._fitting(key, binding, compared), number)

    def _has_fitting(self, key: Key, binding: Binding) -> bool:
        """Whether `fitting` finds one: the slowest, which mostly take least, are tried first."""
        slowest = reversed(self._parts[key[0]].quickest_first())
        return any(True for _ in self._fitting(key, binding, slowest))

    def _fitting(self, key: Key, binding: Binding, numbers: Iterable[int]) -> Iterator[int]:
        """Those of the schedules `numbers` with which a call stays within the budget."""
        part = self._parts[key[0]]
        for number in numbers:
            if number in part.trust.refused:
                continue
            if self._fits(key, binding, part.cost(number, binding)):
                yield number

    def _fits(self, key: Key, binding: Binding, cost: PartCost) -> bool:
        known = self._known
        part = self._parts[key[0]]
        for record in known.records:
            if key not in record.keys:
                continue
            if len(record.keys) == 1:
                budget = known.budget_at(record, binding)
                if known.single_peak(record, part, binding, cost) > budget:
                    return False
                continue
            # In a line, the bytes that others may take depend on the bytes planned for this call.
            planned, least = known.planned[key]
            if part.output_bytes(binding) > part.output_bytes(planned):
                return False
            if any(mine > its for mine, its in zip(cost[1:4], least[1:4], strict=True)):
                return False
        return True

    def follow(self, key: Key, binding: Binding) -> None:
        """Take this call, and the other calls of its steps in proportion, as the largest."""
        known = self._known
        binding = self._parts[key[0]].sizes.limit(binding, known.options.largest)
        pairs = list(zip(known.planned[key][0], binding, strict=True))
        became: dict[int, int] = {}
        for old, new in pairs:
            became[old] = max(new, became.get(old, 0))
        known.take_sizes(key, binding)
        others = {it for record in known.records if key in record.keys for it in record.keys}
        for other in others - {key}:
            sizes = known.size_of(other)
            if other[0] == key[0]:
                same = zip(sizes, pairs, strict=True)
                grown = tuple(math.ceil(size * new / max(1, old)) for size, (old, new) in same)
            else:
                grown = tuple(became.get(size, size) for size in sizes)
            known.take_sizes(other, grown)

    # -- while the step waits ---------------------------------------------------------------------

    def found_quickly(self, key: Key, binding: Binding) -> int | None:
        """A schedule at these sizes that a step can wait for; ``None`` where the search finds none.

        Nothing is measured: bytes are evaluated, as for all longer sizes. Where no known schedule
        can be compared with it, another new one is searched.
        """
        known = self._known
        [record] = [record for record in known.records if key in record.keys]
        part, budget = self._parts[key[0]], known.budget_bytes
        assert budget is not None
        workload = known.workload(record, part, binding)
        plan = self._search.search_quickly(workload, budget)
        if plan is None or plan.schedule is None:
            return None
        number = part.add(plan.schedule)
        cost = part.cost(number, binding)
        if not self._fits(key, binding, cost):
            return None
        if known.options.check != "never" and not self._has_others(part, number, binding):
            other = self._search.search_quickly(workload, int(_OTHER_SHARE * budget))
            if other is None or other.schedule is None or part.add(other.schedule) == number:
                return None
        known.plan = plan
        known.numbers[key], known.planned[key] = number, (binding, cost)
        self._search_beside(key, binding)
        return number

    def _has_others(self, part: TracedPart, number: int, binding: Binding) -> bool:
        """Whether a schedule can be compared with another one at these sizes."""
        others = {*self.within(part, binding, 0)} - {number}
        return bool(others - part.trust.refused.keys())

    def within(self, part: TracedPart, binding: Binding, beside_bytes: int) -> list[int]:
        """Schedules of `part` with which a step beside these bytes is within the budget.

        The quickest comes first: it repeats least, and so differs most from the others.
        """
        known = self._known
        if known.budget_bytes is None:
            return []
        room = known.budget_bytes - max(beside_bytes, known.resident.now.resident_bytes)
        between = part.input_bytes(binding) + part.given_bytes(binding) + _SCRATCH_BYTES
        costs = [part.cost(number, binding) for number in range(len(part.schedules))]
        fitting = [
            cost
            for cost in costs
            if max(cost.forward_bytes, cost.kept_bytes + between, cost.backward_bytes) <= room
        ]
        return [
            cost.number for cost in sorted(fitting, key=lambda cost: (cost.time_s, cost.number))
        ]

    # -- beside the loop --------------------------------------------------------------------------

    def improve(self, key: Key, binding: Binding, number: int) -> None:
        """Search in the background for a call that is larger than planned for and runs slowly."""
        part, (known, _) = self._parts[key[0]], self._known.planned[key]
        now, then = (part.store_all_cost(one) for one in (binding, known))
        much_larger = now.kept_bytes > _LONGER_KEPT * then.kept_bytes
        slow = part.cost(number, binding).time_s > _SLOW * now.time_s
        if much_larger and slow:
            self._search_beside(key, binding)

    def _search_beside(self, key: Key, binding: Binding, *, is_ahead: bool = False) -> bool:
        """Search beside the loop for a schedule at these sizes; whether a search has begun."""
        known = self._known
        part = self._parts[key[0]]
        records = [record for record in known.records if key in record.keys]
        if not known.options.background or known.budget_bytes is None or self._beside.is_busy:
            return False
        if len(records) != 1 or len(records[0].keys) != 1:
            return False
        budget = known.budget_at(records[0], binding)
        workload = known.workload(records[0], part, binding)

        def search() -> _FoundBeside:
            plan = self._search.search(workload, budget, 1.0)
            code = None if plan.schedule is None else part.code_of(plan.schedule)
            return _FoundBeside(key, binding, plan, code, is_ahead)

        return self._beside.start(search)

    def look_ahead(self, key: Key) -> None:
        """Search beside the loop for a schedule at sizes above all seen, where no known one fits.

        A step that is the first of its size then finds its schedule.
        """
        known = self._known
        part, largest = self._parts[key[0]], known.size_of(key)
        if known.options.largest or not known.records:
            return
        for share in _AHEAD:
            longer = part.sizes.grown(largest, share)
            if self._has_fitting(key, longer):
                return
            if (key, longer) not in self._ahead:
                if self._search_beside(key, longer, is_ahead=True):
                    self._ahead.add((key, longer))
                return

    def take_up(self) -> bool:
        """Use the result of a background search from now on; whether there was one."""
        known = self._known
        found = self._beside.taken()
        if found is None or found.key not in known.numbers:
            return False
        part = self._parts[found.key[0]]
        if found.plan.schedule is None:
            self.look_ahead(found.key)  # not as far
            return False
        number = part.add(found.plan.schedule, found.code)
        part.trust.expect(number, now=False)
        if not found.is_ahead:
            known.numbers[found.key] = number
            known.planned[found.key] = (found.binding, part.cost(number, found.binding))
        return True

    def wait(self) -> None:
        """Wait until no background search runs; the next step uses the result."""
        self._beside.wait()
