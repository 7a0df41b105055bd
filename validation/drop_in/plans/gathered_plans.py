"""Schedules for the parts of a step whose blocks gather their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.plan import Plan

from ...whole_step.step_budget import budget_in_bytes
from ..drop_in_options import DropInOptions
from ..parts.part_line import CallInLine, LinePlan, PartCost, peak_of
from ..parts.planned_part import PlannedPart
from ..parts.small_groups import SmallGroups
from ..parts.traced_part import TracedPart
from ..records.step_record import Key
from .gathered_calls import CallLevels, GatheredRecord, Mode, calls_in_line, least_of, most_of
from .gathered_first_steps import GatheredFirstSteps, least_peak
from .ordered_line import OrderedLine, plain_line
from .schedule_search import ScheduleSearch, infeasible_line

_KEPT_SHARES = (0.75, 0.5, 0.3, 0.15, 0.05, 0.0)
"""Shares of what store-all keeps of a part, besides its outputs, for which it is scheduled."""
_MOST_READINGS, _MOST_SCHEDULES = 12, 4
"""Readings of a step by the same schedules, and the number of divisions that are read."""
_PATIENCE = 24
"""Steps that are recorded in vain once there is a plan, as for a kind that comes rarely."""


_UNKNOWN = 1 << 30
"""Stands for the schedule of a call that has none."""


class GatheredPlans:
    """Schedules for the calls of parts, by which a step stays within one budget.

    The first steps run by the schedules of least peak, until the least bytes around the parts were
    read twice. Then the budget is divided among the calls. A step by the new schedules is read
    again: a tensor that the code around held before may be kept by a part now, or by nobody.
    Compiled parts are put in small groups where nothing fits else.

    Attributes
    ----------
    budget_bytes, peak_bytes
        The budget, and the predicted peak, once a step was planned.
    numbers
        The schedule of each call.
    plan
        The plan of a part that was made last.
    resident_bytes
        Bytes resident beside gradients, the room among them.
    room_bytes
        Bytes of the budget that plans leave to the allocator.
    first : GatheredFirstSteps
        What is known before the budget was divided.
    small : SmallGroups
        Which parts of compiled steps run in small groups.
    """

    def __init__(
        self,
        options: DropInOptions,
        parts: list[TracedPart],
        before_measuring: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._parts = options, parts
        self._before_measuring = before_measuring
        self.budget_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.numbers: dict[Key, int] = {}
        self.plan: Plan | None = None
        self.resident_bytes = self.room_bytes = 0
        self.first = GatheredFirstSteps()
        self.small = SmallGroups(parts, lambda index: None)
        self._choices: dict[PlannedPart, tuple[PartCost, ...]] = {}
        self._steps: dict[tuple[tuple[Key, ...], Mode], _StepReadings] = {}
        self._unread: set[tuple[tuple[Key, ...], Mode]] = set()
        self._patience = _PATIENCE
        self._is_stale = False
        self.keeps_least = False  # whether steps are seen that no plan is for

    def number_for(self, key: Key) -> int:
        """The schedule by which a call runs; in a step that is not known, one that keeps least."""
        if key in self.numbers and not self.keeps_least:
            return self.numbers[key]
        first, costs = self.first.numbers.get(key), self._trusted(key[0])
        if self.peak_bytes is None and any(cost.number == first for cost in costs):
            assert first is not None
            return first
        return min(costs, key=lambda cost: (cost.kept_bytes, cost.backward_bytes)).number

    @property
    def is_share(self) -> bool:
        """Whether the budget was given as a share."""
        return self._options.is_share

    @property
    def present(self) -> tuple[Any, ...]:
        """What tells the present plan from others."""
        return self.numbers, self.peak_bytes, self.small.num_changes

    def plan_anew(self) -> None:
        """Divide the budget anew when the next step begins."""
        self._is_stale = True

    def refuse(self) -> None:
        """Divide the budget anew: a schedule of a part was seen to be another step."""
        self._is_stale = self.first.is_new = True
        self.numbers = {}

    def _trusted(self, index: int) -> list[PartCost]:
        refused = self._parts[index].trust.refused
        return [cost for cost in self._choices_of(index) if cost.number not in refused]

    def wants(self, mode: Mode) -> bool:
        """Whether a step of this mode is to be read."""
        found = [step for (_, its), step in self._steps.items() if its == mode]
        if not found:
            return True
        if self.peak_bytes is not None and not self._patience:
            return False
        is_missing = any(its == mode for _, its in self._unread)
        return is_missing or any(step.wants(self._numbers_of(step)) for step in found)

    def recorded(self) -> None:
        """A step was recorded, whatever it tells."""
        self._patience = max(0, self._patience - 1)

    def saw(self, keys: tuple[Key, ...], mode: Mode) -> None:
        """A step has run these calls: those that are new are to be read when they come again."""
        kind = keys, mode
        if kind not in self._steps and kind not in self._unread:
            self._unread.add(kind)
            self._patience = _PATIENCE

    def _numbers_of(self, step: _StepReadings) -> tuple[int, ...]:
        parts = (self._parts[index] for index, _ in step.keys)
        numbers = (self.numbers.get(key) for key in step.keys)
        return tuple(
            _UNKNOWN if number is None else part.mark(number)
            for part, number in zip(parts, numbers, strict=True)
        )

    def gauge(self, record: GatheredRecord) -> None:
        """Take in the measurements of a step with a made-up loss, which keeps nothing.

        Most others keep a tensor or two as large as the output.
        """
        index, _ = record.keys[-1]
        self.first.see(record, self._parts[index].given_bytes())

    def learn(self, record: GatheredRecord) -> None:
        """Take in the measurements of a step."""
        if self.peak_bytes is None:
            self.first.see(record)
        kind = record.keys, record.mode
        self._unread.discard(kind)
        if self._steps.setdefault(kind, _StepReadings(record.keys)).learn(record):
            self._is_stale, self._patience = True, _PATIENCE

    def begin(self, resident_bytes: int) -> None:
        """Divide the budget for the coming step, if something new is known.

        Raises
        ------
        InfeasibleBudgetError
            The steps seen do not fit.
        """
        resident_bytes += self.room_bytes
        before, self.resident_bytes = self.resident_bytes, resident_bytes
        if self._is_stale or (resident_bytes > before and self.numbers):
            self._is_stale = False
            self._divide()
        if self.peak_bytes is None and (self.first.is_new or resident_bytes != before):
            self._choose_first()

    def _choose_first(self) -> None:
        """Choose schedules of least peak: what the loop takes around the parts is not known yet.

        A budget that no such step fits is not refused: what was read once may be too much.
        """
        record = self.first.record
        if record is None:
            return

        def line() -> OrderedLine:
            keys = record.keys
            choices = [tuple(self._trusted(index)) for index, _ in keys]
            return plain_line(calls_in_line(record, record.levels, choices, self.resident_bytes))

        with self.small.in_large():
            budget = budget_in_bytes(self._options.budget, line().store_all_peak(), [])

        def within() -> LinePlan:
            found = least_peak(line())
            if found.peak_bytes + self.first.reserve_bytes > budget:
                raise infeasible_line(line(), max(1, found.peak_bytes - 1), self._last_plan)
            return found

        self.small.make_large()
        try:
            found = self.small.or_small((index for index, _ in record.keys), within)
        except InfeasibleBudgetError:
            found = least_peak(line())
        self.first.take(found, budget)

    def store_all_bytes(self, keys: Sequence[Key]) -> int:
        """Bytes that these calls keep if nothing is recomputed."""
        return sum(self._choices_of(index)[0].kept_bytes for index, _ in keys)

    def _choices_of(self, index: int) -> tuple[PartCost, ...]:
        """The costs of schedules of a part that keep different amounts; store-all comes first."""
        part = self._parts[index]
        if part not in self._choices:
            if not part.is_measured:
                self._before_measuring()  # ops are measured by the same profiler
                part.measure(())
            costs = [part.store_all_cost()]
            beside = part.input_bytes() + part.given_bytes()
            outputs = part.output_bytes()
            for share in _KEPT_SHARES:
                most = max(costs[0].backward_bytes, costs[0].forward_bytes)
                kept = outputs + int(share * max(0, costs[0].kept_bytes - outputs))
                plan = self._search(part, max(1, most - beside - kept), most)
                if plan.schedule is None and plan.min_feasible_bytes:
                    plan = self._search(part, 0, plan.min_feasible_bytes)
                if plan.schedule is not None:
                    costs.append(part.cost(part.add(plan.schedule)))
                    self.plan = plan
            self._choices[part] = tuple(dict.fromkeys(costs))
        return self._choices[part]

    def _search(self, part: PlannedPart, outside_bytes: int, budget_bytes: int) -> Plan:
        search = ScheduleSearch(self._options)
        return search.search(part.workload(0, outside_bytes), budget_bytes, 0.2)

    def _line(
        self,
        step: _StepReadings,
        allowed: Mapping[Key, int],
        numbers: tuple[int, ...] | None = None,
    ) -> list[CallInLine]:
        """The calls of a step, of which those in `allowed` keep no more than these bytes.

        With `numbers`, beside the bytes that were read when the calls ran by these schedules.
        """
        choices = []
        for key in step.keys:
            costs = self._trusted(key[0])
            least = min(cost.kept_bytes for cost in costs)
            most = max(least, allowed.get(key, costs[0].kept_bytes))
            choices.append(tuple(cost for cost in costs if cost.kept_bytes <= most))
        assert step.last is not None
        return calls_in_line(step.last, step.levels(numbers), choices, self.resident_bytes)

    def _divide(self) -> None:
        lines = [step for step in self._steps.values() if step.is_settled]
        if not lines:
            return
        if self.peak_bytes is None:  # what was read once was no reason for small groups
            self.small.make_large()
        if self.budget_bytes is None or isinstance(self._options.budget, str):
            with self.small.in_large():
                most = max(plain_line(self._line(step, {})).store_all_peak() for step in lines)
            self.budget_bytes = budget_in_bytes(self._options.budget, most, [])
        indices = [index for step in lines for index, _ in step.keys]
        chosen = self.small.or_small(indices, lambda: self._chosen(lines))
        self.numbers = {key: cost.number for key, cost in chosen.items()}
        self.peak_bytes = max(
            peak_of(
                self._line(step, {}, self._numbers_of(step)), [chosen[key] for key in step.keys]
            )
            for step in lines
        )

    def _chosen(self, lines: Sequence[_StepReadings]) -> dict[Key, PartCost]:
        chosen: dict[Key, PartCost] = {}
        for step in reversed(lines):
            found = self._divided(step, {key: cost.kept_bytes for key, cost in chosen.items()})
            chosen |= dict(zip(step.keys, found.costs, strict=True))
        return chosen

    def _divided(self, step: _StepReadings, allowed: Mapping[Key, int]) -> LinePlan:
        assert self.budget_bytes is not None
        line = plain_line(self._line(step, allowed))
        found = line.divide(self.budget_bytes)
        if found is not None:
            return found
        raise infeasible_line(line, self.budget_bytes, self._last_plan)

    @property
    def _last_plan(self) -> Plan:
        assert self.plan is not None
        return self.plan


class _StepReadings:
    """What was read of a step, by the schedules of its calls."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys = keys
        self.last: GatheredRecord | None = None
        self._rows: dict[tuple[int, ...], list[GatheredRecord]] = {}
        self._settled: dict[tuple[int, ...], tuple[CallLevels, ...]] = {}

    @property
    def is_settled(self) -> bool:
        """Whether the step can be planned."""
        return bool(self._settled)

    def wants(self, numbers: tuple[int, ...]) -> bool:
        """Whether the step is to be read when its calls run by these schedules."""
        if not self.is_settled:
            return True
        return numbers not in self._settled and len(self._settled) < _MOST_SCHEDULES

    def learn(self, record: GatheredRecord) -> bool:
        """Take in a reading; returns whether it settles something."""
        self.last = record
        rows = self._rows.setdefault(record.numbers, [])
        rows.append(record)
        least = least_of(rows)
        twice = sum(row.levels == least for row in rows) > 1
        if record.numbers in self._settled or not (twice or len(rows) >= _MOST_READINGS):
            return False
        self._settled[record.numbers] = least
        return True

    def levels(self, numbers: tuple[int, ...] | None) -> tuple[CallLevels, ...]:
        """The bytes around the calls, read with these schedules; the most of any otherwise."""
        if numbers in self._settled:
            return self._settled[numbers]
        return most_of(list(self._settled.values()))
