"""The plans of a step of several parts: the budget is divided among its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...whole_step.step_budget import budget_in_bytes
from ..parts.part_line import CallInLine, LinePlan, PartCost
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from ..records.step_record import Key, StepRecord
from .known_steps import KnownSteps
from .line_calls import bytes_around_calls
from .ordered_line import CallRoom, OrderedLine
from .schedule_search import ScheduleSearch, infeasible_line

_KEPT_SHARES = (0.7, 0.45, 0.25, 0.1)
"""Shares of what store-all keeps of a part for which it is scheduled."""
_ROOM_SHARES = (1.0, 0.6, 0.35)
"""Shares of the budget that one part may take, tried one after the other."""
_LEAST_KEPT, _LEAST_PEAKS = (0.45, 0.15, 0.0), (0.5, 0.0)
"""Of schedules of little memory: shares of what store-all keeps, and of its peak over the least."""
_MOST_SEARCHES = 8
"""Searches by which a division is made better."""

CostsOf = Callable[[PlannedPart, Binding, int], tuple[PartCost, ...]]
"""Costs of the schedules of a part, at its sizes, that has so many bytes of the budget."""


class LineSteps:
    """Divides the budget among the calls of steps."""

    def __init__(self, known: KnownSteps, search: ScheduleSearch) -> None:
        self._known, self._search = known, search
        self._least: dict[tuple[PlannedPart, Binding, frozenset[int]], list[int]] = {}

    def store_all_peak(self, record: StepRecord) -> int:
        """The peak of a step that keeps everything."""
        return self._line(record, {}, self._known_costs).store_all_peak()

    def peak_of(self, record: StepRecord, costs: Sequence[PartCost]) -> int:
        """The peak of a step whose calls have these costs."""
        return self._line(record, {}, self._known_costs).peak_of(costs)

    def divided(self, record: StepRecord, chosen: dict[Key, PartCost]) -> LinePlan | None:
        """The choices among the schedules that are known; ``None`` if these do not fit."""
        line = self._line(record, chosen, self._known_costs)
        return line.divide(self._budget(line))

    def least_line(self, record: StepRecord, more_bytes: int = 0) -> OrderedLine:
        """The calls with schedules that do not depend on the budget: store-all, and little memory.

        Parameters
        ----------
        more_bytes
            Bytes beside the step, besides those that are resident.
        """
        return self._line(record, {}, self._least_costs, more_bytes)

    def least_number(self, part: PlannedPart, binding: Binding, beside_bytes: int = 0) -> int:
        """The schedule of `part` with the least memory, among those for these sizes or others.

        Parameters
        ----------
        beside_bytes
            What may run beside that which the schedule keeps, as the step of another model.
        """
        alike = part, part.buffers.taken
        known = next((found for (it, _, w), found in self._least.items() if (it, w) == alike), None)
        if known is None:
            known = self._least_of(part, binding)
        costs = [part.store_all_cost(binding), *(part.cost(it, binding) for it in known)]

        def most(cost: PartCost) -> tuple[int, int, int]:
            peak = max(cost.forward_bytes, cost.backward_bytes)
            within = cost.kept_bytes + beside_bytes if beside_bytes else 0
            return max(peak, within), cost.kept_bytes, peak

        return min(costs, key=most).number

    def plan(self, record: StepRecord, chosen: dict[Key, PartCost]) -> LinePlan:
        """The choices for a step of several parts; those `chosen` already keep no more.

        Raises
        ------
        InfeasibleBudgetError
            No choice fits the budget.
        """
        known = self._known
        for share in _ROOM_SHARES:
            line = self._line(record, chosen, partial(self._costs_within_share, share))
            found = line.divide(self._budget(line))
            if found is not None:
                return self._refined(record, line, found, self._budget(line))
        # By schedules that do not depend on the budget, so that the least one that they fit is one
        # that the next try fits, too.
        line = self._line(record, chosen, self._least_costs)
        budget = self._budget(line)
        found = line.divide(budget)
        if found is not None:
            return self._refined(record, line, found, budget)
        assert known.plan is not None
        raise infeasible_line(line, budget, known.plan, known)

    def _refined(
        self, record: StepRecord, line: OrderedLine, found: LinePlan, budget: int
    ) -> LinePlan:
        """`found`, with schedules for the very bytes that the other calls leave to each.

        The calls that repeat most come first. Calls of other steps, too, stay as they are: theirs
        are planned beside these schedules.
        """
        known = self._known
        others = {key for other in known.records if other is not record for key in other.keys}
        own = [record.keys.index(key) for key in dict.fromkeys(record.keys) if key not in others]
        tried: set[tuple[int, CallRoom]] = set()
        for _ in range(_MOST_SEARCHES):
            slow = [i for i in own if _overhead_s(line, found, i)]
            slow.sort(key=lambda i: -_overhead_s(line, found, i))
            rooms = ((i, _room_of_key(line, found, i, budget)) for i in slow)
            following = next((row for row in rooms if row not in tried), None)
            if following is None:
                break
            tried.add(following)
            i, room = following
            key = record.keys[i]
            part, binding = known.parts[key[0]], known.size_of(key)
            most = max(cost.kept_bytes for cost in line.calls[i].choices)
            peak = min(room.forward_bytes, room.backward_bytes)
            beside = part.input_bytes(binding) + part.given_bytes(binding)
            outside = max(0, peak - beside - min(room.kept_bytes, most))
            cost = self._cost_within(part, binding, outside, peak, 0.5)
            if cost is None:
                continue
            other = line.plan_of(
                tuple(
                    cost if key == line.keys[i] else it
                    for key, it in zip(line.keys, found.costs, strict=True)
                )
            )
            if other.peak_bytes <= budget and other.time_s < found.time_s:
                found = other
        return found

    def _budget(self, line: OrderedLine) -> int:
        known = self._known
        if known.budget_bytes is None:
            known.budget_bytes = budget_in_bytes(known.options.budget, line.store_all_peak(), [])
        return known.budget_bytes

    def _line(
        self,
        record: StepRecord,
        chosen: dict[Key, PartCost],
        costs_of: CostsOf,
        more_bytes: int = 0,
    ) -> OrderedLine:
        """The calls of a step, each with the schedules that `costs_of` gives its part."""
        known = self._known
        parts = [known.parts[index] for index, _ in record.keys]
        sizes = [known.size_of(key) for key in record.keys]
        before = known.beside(record)
        beside = before.resident_bytes + more_bytes, before.passing_bytes
        around = bytes_around_calls(record, parts, sizes, *beside)
        resident: dict[int, int] = {}
        for (index, _), it in zip(record.keys, around, strict=True):
            resident[index] = max(it.backward_before, resident.get(index, 0))
        most = 2**53 if known.budget_bytes is None else known.budget_bytes
        choices: dict[tuple[int, Binding], tuple[PartCost, ...]] = {}
        calls = []
        for i, key in enumerate(record.keys):
            at = key[0], sizes[i]
            if at not in choices:
                room = most - resident[key[0]]
                choices[at] = costs_of(parts[i], sizes[i], room)
            allowed = choices[at]
            if key in chosen:
                allowed = tuple(c for c in allowed if c.kept_bytes <= chosen[key].kept_bytes)
            calls.append(CallInLine(allowed, *around[i]))
        return OrderedLine(tuple(calls), record.halves, record.keys)

    def _known_costs(self, part: PlannedPart, binding: Binding, _room: int) -> tuple[PartCost, ...]:
        """Of store-all, and of the schedules that are already known."""
        costs = [part.store_all_cost(binding)]
        costs += [part.cost(number, binding) for number in range(len(part.schedules))]
        return tuple(dict.fromkeys(costs))

    def _costs_within_share(
        self, share: float, part: PlannedPart, binding: Binding, room: int
    ) -> tuple[PartCost, ...]:
        """Besides, of schedules that keep different amounts, with peaks within a `share`."""
        costs = self._known_costs(part, binding, room)
        budget = int(share * room)
        resident = part.input_bytes(binding) + part.given_bytes(binding)
        found = []
        for kept_share in _KEPT_SHARES:
            outside = budget - resident - int(kept_share * costs[0].kept_bytes)
            if outside > 0:
                found.append(self._cost_within(part, binding, outside, budget, 0.25))
        return tuple(dict.fromkeys([*costs, *(cost for cost in found if cost is not None)]))

    def _least_costs(self, part: PlannedPart, binding: Binding, _room: int) -> tuple[PartCost, ...]:
        """Of store-all, and of schedules of little memory, which do not depend on the budget."""
        # What a schedule costs changes as it is learnt what the loop does with outputs.
        costs = (part.cost(number, binding) for number in self._least_of(part, binding))
        return tuple(dict.fromkeys([part.store_all_cost(binding), *costs]))

    def _least_of(self, part: PlannedPart, binding: Binding) -> list[int]:
        at = part, binding, part.buffers.taken
        if at not in self._least:
            self._least[at] = self._least_numbers(part, binding)
        return self._least[at]

    def _least_numbers(self, part: PlannedPart, binding: Binding) -> list[int]:
        """The schedules of `part` that keep little, or have a low peak."""
        store_all = part.store_all_cost(binding)
        most = max(store_all.forward_bytes, store_all.backward_bytes)
        plan = self._search.search(part.workload(0, 0, binding), 1, 0.25)
        if self._known.plan is None:  # what a refusal tells besides is taken from a plan
            self._known.plan = plan
        least = min(most, plan.min_feasible_bytes or most)
        outputs = part.output_bytes(binding)
        resident = part.input_bytes(binding) + part.given_bytes(binding) + outputs
        more = max(0, store_all.kept_bytes - outputs)
        numbers = []
        for peak in (least + int(share * (most - least)) for share in _LEAST_PEAKS):
            kept = [resident + int(share * more) for share in _LEAST_KEPT]
            outsides = dict.fromkeys(max(0, peak - num_bytes) for num_bytes in kept)
            costs = [self._cost_within(part, binding, it, peak, 0.25) for it in outsides]
            if not any(costs) and 0 not in outsides:
                costs.append(self._cost_within(part, binding, 0, peak, 0.25))
            numbers += [cost.number for cost in costs if cost is not None]
        return numbers

    def _cost_within(
        self, part: PlannedPart, binding: Binding, outside: int, budget: int, effort_share: float
    ) -> PartCost | None:
        """The cost of a schedule that is searched for; ``None`` where none is found."""
        plan = self._search.search(part.workload(0, outside, binding), budget, effort_share)
        if plan.schedule is None:
            return None
        return part.cost(part.add(plan.schedule), binding)


def _overhead_s(line: OrderedLine, found: LinePlan, i: int) -> float:
    """Seconds by which call `i` takes longer than where it keeps everything."""
    return found.costs[i].time_s - line.calls[i].choices[0].time_s


def _room_of_key(line: OrderedLine, found: LinePlan, i: int, budget: int) -> CallRoom:
    """The room of each of the calls that run by the schedule of call `i`, if all grow alike."""
    alike = [j for j, key in enumerate(line.keys) if key == line.keys[i]]
    rooms = [line.room_of(j, found.costs, budget) for j in alike]
    room, kept = CallRoom(*map(min, zip(*rooms, strict=True))), found.costs[i].kept_bytes
    return room._replace(kept_bytes=kept + (room.kept_bytes - kept) // len(alike))
