"""The schedules of the parts of a step: planned for the largest sizes, evaluated for others."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from schedsim import Graph, Schedule, simulate
from schedsim.api import try_plan
from schedsim.dataflow.run_once import matches
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.budgets import is_share
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning, ReplannedWarning
from ..step_budget import budget_in_bytes
from .background_search import BackgroundSearch
from .drop_in_options import DropInOptions
from .line_calls import bytes_around_calls
from .ordered_line import OrderedLine, least_budget
from .part_line import CallInLine, LinePlan, PartCost
from .part_sizes import Binding
from .step_record import (
    Key,
    StepRecord,
    bytes_between_halves,
    bytes_by_itself,
    last_first,
    single_peak_bytes,
)
from .traced_part import TracedPart

log = logging.getLogger("schedsim.drop_in")

_KEPT_SHARES = (0.25, 0.5)
_LINE_SHARES = (0.7, 0.45, 0.25, 0.1)
_SMALLER_SHARES = (0.85, 0.7)
"""Shares of the open sizes that are also planned for: smaller batches recompute less."""
_GUESSED_OUTPUTS = 3
"""Bytes of an unmeasured loss, in sizes of the outputs: a copy, the loss's own, a gradient."""
_LONGER = 1.25
"""Growth of outputs over all before at which the code around is measured again."""
_SCRATCH_BYTES = 1 << 12
"""Bytes of a comparison of two schedules, at a time when little else is resident."""
_GROWS = 3
"""Times that what is resident outgrows a plan before it is taken to grow on."""
_LONGER_SEARCHES = (4.0, 12.0)
"""Factors of effort by which a schedule is searched again where the first search finds none."""
_QUICK_EFFORT = 0.03
"""Effort of a search that a step waits for, because its sizes came before their schedule."""
_OTHER_SHARE = 7 / 8
"""Share of the budget within which another schedule is searched, with which it is compared."""
_AHEAD = (1.5, 1.25, 1.1)
"""Sizes, beside the largest seen, for which schedules are searched before such sizes come."""
_LONGER_KEPT, _SLOW = 1.1, 1.01
"""Growth of sizes and overhead from which on a better schedule is searched in the background."""


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


class StepPlans:
    """Schedules for the calls of parts, within one budget.

    If a call's open sizes differ from those planned for, it runs by the quickest known schedule
    whose peak, evaluated at the call's sizes, is within the budget. If there is none, the step is
    planned anew.

    Parameters
    ----------
    parts
        Parts seen so far; more may come.
    before_measuring
        Function that is called before ops are measured.

    Attributes
    ----------
    budget_bytes
        The budget in bytes, once a step has come.
    peak_bytes
        Predicted peak of the steps planned last; ``None`` before.
    numbers
        Numbers of the schedules for the sizes planned for.
    resident_bytes
        Most bytes seen that are resident from before a step to after it.
    passing_bytes
        Most bytes seen of results of earlier steps that are gone before the first backward.
    passing_now
        Those before the present step.
    passes
        Whether results of earlier steps are taken to go so.
    records
        A record of each kind of step seen, the one with the largest outputs.
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
        self.plan: Plan | None = None
        self.numbers: dict[Key, int] = {}
        self.resident_bytes = -1
        self.passing_bytes = self.passing_now = 0
        self.passes = True
        self._num_grown = 0
        self.records: list[StepRecord] = []
        self._planned_records = 0
        self._planned: dict[Key, tuple[Binding, PartCost]] = {}
        self._chosen: dict[tuple[Key, Binding], int] = {}
        self._largest: dict[int, Binding] = {}
        self._frugal: dict[int, int] = {}
        self._replaced: set[int] = set()
        self._unknown: set[str] = set()
        self._said: set[str] = set()
        self._ahead: set[tuple[Key, Binding]] = set()
        self._search_beside: BackgroundSearch[_FoundBeside] = BackgroundSearch()

    # -- for the session --------------------------------------------------------------------------

    def begin(self, resident_bytes: int, passing_bytes: int = 0) -> None:
        """Begin a step beside `resident_bytes`, and plan if something new was seen.

        Parameters
        ----------
        passing_bytes
            Bytes of results of earlier steps, beside these, until the first backward.
        """
        self._take_up()
        growth = max(0, resident_bytes - self.resident_bytes)
        growth += max(0, passing_bytes - self.passing_bytes)
        self.resident_bytes = max(resident_bytes, self.resident_bytes)
        self.passing_now = passing_bytes
        self.passing_bytes = max(passing_bytes, self.passing_bytes)
        if len(self.records) > self._planned_records:
            self._plan_steps()
        elif growth and self.records:
            self._grow(growth)
        elif growth:
            self._frugal.clear()

    def _grow(self, growth: int) -> None:
        """Plan beside so many more resident bytes, if the present plans do not fit.

        What grows from step to step, as a list of results does, is planned for some steps ahead.
        """
        assert self.peak_bytes is not None
        assert self.budget_bytes is not None
        if self.peak_bytes + growth <= self.budget_bytes:
            self.peak_bytes += growth
            self._chosen.clear()
            return
        self._num_grown += 1
        ahead = growth << min(self._num_grown, 10) if self._num_grown > _GROWS else 0
        self.resident_bytes += ahead
        try:
            self._plan_steps()
        except InfeasibleBudgetError:
            if not ahead:
                raise
            self.resident_bytes -= ahead
            self._plan_steps()

    def leave_rehearsal(self, resident_bytes: int) -> None:
        """Forget what was resident beside a rehearsal: a second copy of the step's inputs.

        Steps that have been planned beside it stay as they are.
        """
        if resident_bytes >= 0 and not self.records:
            self.resident_bytes = resident_bytes

    def learn(self, record: StepRecord) -> bool:
        """Take in the measurements of a step; whether a known one of its kind is forgotten.

        At the same sizes, the most of both counts: code between halves may differ from step to
        step. But what stood beside no results of the step before is measured anew beside them.
        """
        same = [known for known in self.records if known.is_like(record)]
        if same and self._output_bytes(same[0]) > self._output_bytes(record):
            return False
        is_forgotten = bool(same)
        if same and same[0].bindings == record.bindings:
            if same[0].passing_bytes or not record.passing_bytes:
                record, is_forgotten = record.most_with(same[0]), False
            if record.differs_from(same[0]):
                self._planned_records = 0
        elif same and same[0].passing_bytes != record.passing_bytes:
            self._planned_records = 0
        self.records = [known for known in self.records if not known.is_like(record)] + [record]
        self._chosen.clear()
        return is_forgotten

    def plan_anew(self) -> None:
        """Plan when the next step begins: what the plans are for was not so."""
        self._planned_records = 0
        self._chosen.clear()
        if not self.passes:
            self.passing_bytes = 0
        if not self.records:
            self._frugal.clear()

    @property
    def wants_passing(self) -> bool:
        """Whether the code between halves is still to be measured beside such results."""
        known = max((record.passing_bytes for record in self.records), default=0)
        return self.passes and self.passing_now > _LONGER * known

    def is_for(self, keys: tuple[Key, ...], order: tuple[int, ...]) -> bool:
        """Whether the schedules of these calls are for this order of their halves.

        Calls of known steps that run backward from the last to the first are, unless the same calls
        were seen in other orders alone.
        """
        seen = [record.halves for record in self.records if record.keys == keys]
        return order in seen or (not seen and order == last_first(len(keys)))

    def forget(self, index: int) -> None:
        """Forget the steps in which part `index` ran: no other will."""
        self._replaced.add(index)
        self.records = [
            record for record in self.records if all(key[0] != index for key in record.keys)
        ]
        self._planned_records = min(self._planned_records, len(self.records))
        self._frugal.pop(index, None)
        for key in [key for key in self.numbers if key[0] == index]:
            del self.numbers[key], self._planned[key]
        self._chosen.clear()

    def is_longest(self, key: Key, binding: Binding) -> bool:
        """Whether this call's outputs are so large that the code around it must be measured."""
        if not binding:
            return False
        part = self._parts[key[0]]
        found = [
            part.output_bytes(record.bindings[record.keys.index(key)])
            for record in self.records
            if key in record.keys
        ]
        return bool(found) and part.output_bytes(binding) > _LONGER * max(found)

    def planned_for(self, key: Key) -> Binding:
        """The open sizes that a call was planned for."""
        return self._planned[key][0]

    def number_for(
        self, key: Key, binding: Binding, resident_bytes: int, earlier_bytes: int
    ) -> int:
        """The number of the schedule by which a call runs.

        Parameters
        ----------
        resident_bytes, earlier_bytes
            Bytes beside the step, and bytes that its earlier calls keep.
        """
        self._see(key[0], binding)
        if key not in self.numbers:
            self.resident_bytes = max(self.resident_bytes, resident_bytes)
            return self._frugal_number(key[0], binding, earlier_bytes)
        if not binding:
            return self.numbers[key]
        at = (key, binding)
        if at not in self._chosen:
            found = self._fitting(key, binding)
            if found is None:
                found = self._grown(key, binding, earlier_bytes)
            else:
                self._improve(key, binding, found)
            self._chosen[at] = found
            self._look_ahead(key)
        return self._chosen[at]

    def within(self, part: TracedPart, binding: Binding, beside_bytes: int) -> list[int]:
        """Schedules of `part` with which a step beside these bytes is within the budget.

        The quickest comes first: it repeats least, and so differs most from the others.
        """
        if self.budget_bytes is None:
            return []
        room = self.budget_bytes - max(beside_bytes, self.resident_bytes)
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

    def has_room_for_hooks(self, index: int) -> bool:
        """Whether the code after a backward of part `index` fits beside any point of the step.

        As where gradients reach hooks, like those that average them, before the backward ends.
        """
        most = [
            stretch.most
            for record in self.records
            for key, stretch in zip(record.keys, record.after_backward, strict=True)
            if key[0] == index
        ]
        if not most or self.peak_bytes is None or self.budget_bytes is None:
            return False
        return self.peak_bytes + max(0, *most) <= self.budget_bytes

    def store_all_bytes(self) -> int:
        """Bytes that the parts keep if nothing is recomputed."""
        return sum(
            self._store_all(part, part.sizes.traced).backward_bytes
            for index, part in enumerate(self._parts)
            if index not in self._replaced
        )

    def _output_bytes(self, record: StepRecord) -> int:
        calls = zip(record.keys, record.bindings, strict=True)
        return sum(self._parts[index].output_bytes(binding) for (index, _), binding in calls)

    def _store_all(self, part: TracedPart, binding: Binding) -> PartCost:
        return part.store_all_cost(binding)

    # -- sizes that differ ------------------------------------------------------------------------

    def _see(self, index: int, binding: Binding) -> None:
        """Note the largest batch, for which plans are made."""
        part = self._parts[index]
        if not part.is_measured:
            self._measure(part, part.sizes.limit(binding, self._options.largest))
        known = self._largest.get(index)
        binding = part.sizes.limit(binding, self._options.largest)
        if known is None or (
            binding != known
            and self._store_all(part, binding).kept_bytes > self._store_all(part, known).kept_bytes
        ):
            self._largest[index] = binding

    def _measure(self, part: TracedPart, binding: Binding) -> None:
        if binding not in part.sizes.measured:
            self._before_measuring()
            part.measure(binding)

    def _fitting(self, key: Key, binding: Binding) -> int | None:
        """The quickest known schedule with which a call of these sizes stays within the budget."""
        part = self._parts[key[0]]
        costs = [part.cost(number, binding) for number in range(len(part.schedules))]
        costs = [cost for cost in costs if cost.number not in part.trust.refused]
        costs.sort(key=lambda cost: (cost.time_s, cost.kept_bytes))
        return next((cost.number for cost in costs if self._fits(key, binding, cost)), None)

    def _fits(self, key: Key, binding: Binding, cost: PartCost) -> bool:
        part, budget = self._parts[key[0]], self.budget_bytes
        assert budget is not None
        for record in self.records:
            if key not in record.keys:
                continue
            if len(record.keys) == 1:
                peak = single_peak_bytes(record, part, binding, cost, self.passing_bytes)
                if self.resident_bytes + peak > budget:
                    return False
                continue
            # In a line, the bytes that others may take depend on the bytes planned for this call.
            planned, least = self._planned[key]
            if part.output_bytes(binding) > part.output_bytes(planned):
                return False
            if any(mine > its for mine, its in zip(cost[1:4], least[1:4], strict=True)):
                return False
        return True

    def _improve(self, key: Key, binding: Binding, number: int) -> None:
        """Search in the background for a call that is larger than planned for and runs slowly."""
        part, (known, _) = self._parts[key[0]], self._planned[key]
        now, then = (self._store_all(part, one) for one in (binding, known))
        much_larger = now.kept_bytes > _LONGER_KEPT * then.kept_bytes
        slow = part.cost(number, binding).time_s > _SLOW * now.time_s
        if much_larger and slow:
            self._search_better(key, binding)

    def _search_better(self, key: Key, binding: Binding, *, is_ahead: bool = False) -> bool:
        """Search beside the loop for a schedule at these sizes; whether a search has begun."""
        part, budget = self._parts[key[0]], self.budget_bytes
        records = [record for record in self.records if key in record.keys]
        if not self._options.background or budget is None or self._search_beside.is_busy:
            return False
        if len(records) != 1 or len(records[0].keys) != 1:
            return False
        workload = self._workload(records[0], part, binding)

        def search() -> _FoundBeside:
            plan = self._search(workload, budget, 1.0)
            code = None if plan.schedule is None else part.code_of(plan.schedule)
            return _FoundBeside(key, binding, plan, code, is_ahead)

        return self._search_beside.start(search)

    def _look_ahead(self, key: Key) -> None:
        """Search beside the loop for a schedule at sizes above all seen, where no known one fits.

        A step that is the first of its size then finds its schedule.
        """
        part, largest = self._parts[key[0]], self._largest[key[0]]
        if self._options.largest or not self.records:
            return
        for share in _AHEAD:
            sizes = zip(largest, part.sizes.open_sizes, strict=True)
            longer = tuple(min(math.ceil(share * size), at.most or 2**62) for size, at in sizes)
            if self._fitting(key, longer) is not None:
                return
            if (key, longer) not in self._ahead:
                if self._search_better(key, longer, is_ahead=True):
                    self._ahead.add((key, longer))
                return

    def _take_up(self) -> None:
        """Use the result of a background search from this step on."""
        found = self._search_beside.taken()
        if found is None or found.key not in self.numbers:
            return
        key, part = found.key, self._parts[found.key[0]]
        if found.plan.schedule is None:
            self._look_ahead(key)  # not as far
            return
        number = part.add(found.plan.schedule, found.code)
        self._chosen.clear()
        if not found.is_ahead:
            self.numbers[key] = number
            self._planned[key] = (found.binding, part.cost(number, found.binding))

    def wait(self) -> None:
        """Wait until no background search runs; the next step uses the result."""
        self._search_beside.wait()

    def _grown(self, key: Key, binding: Binding, earlier_bytes: int) -> int:
        """A schedule for a call that fits by no known schedule."""
        part = self._parts[key[0]]
        in_lines = any(key in record.keys and len(record.keys) > 1 for record in self.records)
        if in_lines and earlier_bytes:
            return self._late(key, binding)
        self._follow(key, binding)
        if in_lines and self._replan(searches=False):
            found = self._fitting(key, binding)
            if found is not None:
                return found
        self._say(
            f"the step is planned anew for larger inputs{part.sizes.in_words(binding)}",
            ReplannedWarning,
        )
        quick = None if in_lines else self._found_quickly(key, binding)
        if quick is not None:
            self._search_better(key, binding)
            return quick
        self._replan()
        found = self._fitting(key, binding)
        if found is None and in_lines:
            return self._late(key, binding)
        return self.numbers[key] if found is None else found

    def _found_quickly(self, key: Key, binding: Binding) -> int | None:
        """A schedule at these sizes that a step can wait for; ``None`` where the search finds none.

        Nothing is measured: bytes are evaluated, as for all longer sizes. Where no known schedule
        can be compared with it, another new one is searched.
        """
        [record] = [record for record in self.records if key in record.keys]
        part, budget = self._parts[key[0]], self.budget_bytes
        assert budget is not None
        if self._options.planner != "auto":
            return None
        workload = self._workload(record, part, binding)
        plan = try_plan(workload, max(1, budget), "auto", effort=_QUICK_EFFORT)
        if plan.schedule is None:
            return None
        number = part.add(plan.schedule)
        cost = part.cost(number, binding)
        if not self._fits(key, binding, cost):
            return None
        if self._options.check != "never" and not self._has_others(part, number, binding):
            other = try_plan(workload, int(_OTHER_SHARE * budget), "auto", effort=_QUICK_EFFORT)
            if other.schedule is None or part.add(other.schedule) == number:
                return None
        self.plan = plan
        self.numbers[key], self._planned[key] = number, (binding, cost)
        return number

    def _has_others(self, part: TracedPart, number: int, binding: Binding) -> bool:
        """Whether a schedule can be compared with another one at these sizes."""
        others = {*self.within(part, binding, self.resident_bytes)} - {number}
        return bool(others - part.trust.refused.keys())

    def _follow(self, key: Key, binding: Binding) -> None:
        """Take this call, and the other calls of its steps in proportion, as the largest."""
        part = self._parts[key[0]]
        binding = part.sizes.limit(binding, self._options.largest)
        known = self._planned[key][0]
        became: dict[int, int] = {}
        for old, new in zip(known, binding, strict=True):
            became[old] = max(new, became.get(old, 0))
        self._largest[key[0]] = binding
        for record in self.records:
            if key in record.keys:
                for index in {index for index, _ in record.keys} - {key[0]}:
                    if index in self._largest:
                        other = self._largest[index]
                        self._largest[index] = tuple(became.get(size, size) for size in other)

    def _late(self, key: Key, binding: Binding) -> int:
        """The schedule of least memory, for a call larger than its step's first call implied."""
        part = self._parts[key[0]]
        self._say(
            f"{part.name} has larger inputs than its step began with"
            f"{part.sizes.in_words(binding)}: this step may exceed the budget",
            PlainStepWarning,
        )
        self._planned_records = 0  # plan anew when the next step begins
        self._largest[key[0]] = binding
        costs = [part.cost(number, binding) for number in range(len(part.schedules))]
        return min(costs, key=lambda cost: (cost.backward_bytes, cost.kept_bytes)).number

    def _say(self, line: str, kind: type[UserWarning]) -> None:
        if line not in self._said:
            self._said.add(line)
            warnings.warn(line, kind, stacklevel=2)

    # -- planning ---------------------------------------------------------------------------------

    def _budget(self, workload: Graph) -> int:
        """The budget in bytes; a share is taken of the known store-all peak of a step."""
        if self.budget_bytes is None or not self.records:
            store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
            self.budget_bytes = budget_in_bytes(self._options.budget, store_all, [])
        return self.budget_bytes

    @property
    def _is_share(self) -> bool:
        budget = self._options.budget
        return isinstance(budget, str) and is_share(budget)

    def _frugal_number(self, index: int, binding: Binding, earlier_bytes: int) -> int:
        """A schedule that leaves room for whatever may come later in the step."""
        part = self._parts[index]
        static = self.resident_bytes + earlier_bytes
        guessed = _GUESSED_OUTPUTS * part.output_bytes(binding)
        known = self._frugal.get(index)
        if known is not None:
            if not binding or self.budget_bytes is None:
                return known
            cost = part.cost(known, binding)
            between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
            most = max(cost.forward_bytes, between + guessed, cost.backward_bytes)
            if static + most <= self.budget_bytes:
                return known
        self._measure(part, binding if known is not None else self._measured_at(part, binding))
        told = part.sizes.limit(binding, self._options.largest)  # a share is one of that peak
        budget = self._budget(part.workload(static, guessed, told))
        store_all = self._store_all(part, binding)
        room = budget - static - part.input_bytes(binding) - part.given_bytes(binding)
        # At last the plan may keep anything, as only a loss is known to follow. What that takes is
        # a guess, which refuses no budget: the first step measures it.
        rooms = [max(guessed, room - int(share * store_all.kept_bytes)) for share in _KEPT_SHARES]
        for outside in (*rooms, guessed):
            plan = self._search(part.workload(static, outside, binding), budget, 0.3)
            if plan.schedule is not None:
                break
        else:
            workload = part.workload(static, 0, binding)
            plan = self._search_long(workload, budget, 0.3)
            least = plan.min_feasible_bytes
            if plan.schedule is None and least and self._is_share:
                # A share of what? Once the whole step was seen, it is known whether it fits. A
                # step with more calls than those seen, as one whose backward does not come while
                # its outputs are held, has a larger peak to take the share of.
                plan = self._search_long(workload, least, 0.3)
            if plan.schedule is None and part.guess_use():
                # Nor does what the loop may hold of the outputs refuse one: the step tells.
                plan = self._search_long(part.workload(static, 0, binding), budget, 0.3)
        if plan.schedule is None:
            raise self._infeasible(part.name + part.sizes.in_words(binding), plan)
        self.plan = plan
        number = self._frugal[index] = part.add(plan.schedule)
        return number

    def _measured_at(self, part: TracedPart, binding: Binding) -> Binding:
        """Sizes at which `part` was measured, from which `binding` can be evaluated well enough."""
        for known in part.sizes.measured:
            if all(mine <= its for mine, its in zip(binding, known, strict=True)):
                return known
        return binding

    def _search(self, workload: Graph, budget_bytes: int, share: float) -> Plan:
        options: dict[str, Any] = {}
        if self._options.planner == "auto":
            options["effort"] = max(0.2, share * self._options.effort)
            if self._options.time_limit_s is not None:
                options["time_limit_s"] = self._options.time_limit_s
        return try_plan(workload, max(1, budget_bytes), self._options.planner, **options)

    def _search_long(self, workload: Graph, budget_bytes: int, share: float) -> Plan:
        """Search as `_search` does, and longer before the step is refused without a proof."""
        for factor in (1.0, *_LONGER_SEARCHES):
            plan = self._search(workload, budget_bytes, factor * share)
            is_refuted = plan.least.refutes(budget_bytes)
            if plan.schedule is not None or is_refuted or self._options.planner != "auto":
                break
        return plan

    def _infeasible(self, name: str, plan: Plan) -> InfeasibleBudgetError:
        assert self.budget_bytes is not None
        least = plan.min_feasible_bytes
        return InfeasibleBudgetError(
            f"{name} does not fit {format_bytes(self.budget_bytes)}"
            + (f": {plan.least.sentence(plan.binding_op or '')}" if least else ""),
            plan=plan,
            hint=(f"budget={least}{self._unmeasured()}, " if least else "give more, ")
            + ("a smaller optimizer state, or " if self._options.optimizer else "")
            + "a smaller batch",
        )

    def _unmeasured(self) -> str:
        """What comes to a least budget that is named before any step of the loop has run."""
        return "" if self.records else " and what the loop takes besides, as its loss"

    def _plan_steps(self) -> None:
        """Divide the budget anew, for all steps seen."""
        self._planned_records = len(self.records)
        self._look_for_kept()
        self._replan()

    def _replan(self, searches: bool = True) -> bool:
        """Plan for all steps seen; returns whether there are plans without a further search."""
        self._chosen.clear()
        numbers: dict[Key, int] = {}
        chosen: dict[Key, PartCost] = {}
        most = 0
        singles = [record for record in self.records if len(record.keys) == 1]
        others = [record for record in self.records if len(record.keys) > 1]
        shared = {key for record in others for key in record.keys}
        for record in singles:
            if record.keys[0] not in shared:
                if not searches:
                    return False
                plan = self._plan_single(record)
                assert plan.schedule is not None
                assert plan.peak_bytes is not None
                part = self._parts[record.keys[0][0]]
                numbers[record.keys[0]] = part.add(plan.schedule)
                planned = plan.peak_bytes
                if part.use.lacking:
                    planned = self._peak_of(record, plan.schedule)
                most = max(most, planned, self._by_itself(record))
        lines = [*others, *(record for record in singles if record.keys[0] in shared)]
        for record in reversed(lines):
            found = self._plan_line(record, chosen) if searches else self._divided(record, chosen)
            if found is None:
                return False
            most = max(most, found.peak_bytes)
            chosen.update(zip(record.keys, found.costs, strict=True))
        numbers |= {key: cost.number for key, cost in chosen.items()}
        self.peak_bytes, self.numbers = most, numbers
        for key, number in numbers.items():
            binding = self._largest[key[0]]
            self._planned[key] = (binding, self._parts[key[0]].cost(number, binding))
        return True

    def _look_for_kept(self) -> None:
        """Warn of patterns that name nothing, once the parts are known."""
        names = [name for part in self._parts for name in part.graph.op_names]
        for pattern in self._options.keep:
            if not any(matches(name, pattern) for name in names) and pattern not in self._unknown:
                self._unknown.add(pattern)
                warnings.warn(f"keep={pattern!r} names no op of the step", stacklevel=2)

    def _plan_single(self, record: StepRecord) -> Plan:
        """The plan of a step of one part; the code between its halves is one op of the graph."""
        index = record.keys[0][0]
        part, binding = self._parts[index], self._largest[index]
        self._measure(part, binding)
        workload = self._workload(record, part, binding)
        budget = self._budget(workload)
        if self._is_share:
            store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
            if part.use.lacking:
                store_all = max(store_all, self._peak_of(record, Schedule.store_all(workload)))
            store_all = max(store_all, self._by_itself(record))
            budget = self.budget_bytes = budget_in_bytes(self._options.budget, store_all, [])
        plan = self._search_long(workload, budget, 1.0)
        if plan.schedule is not None and part.use.lacking:
            # Another backward runs then, which may take a little more.
            over = self._peak_of(record, plan.schedule) - budget
            if over > 0:
                plan = self._search_long(workload, max(1, budget - over), 1.0)
            if plan.schedule is None or self._peak_of(record, plan.schedule) > budget:
                workload = self._workload(record, part, binding, zeros=True)
                plan = self._search_long(workload, budget, 1.0)
        if plan.schedule is None:
            raise self._infeasible(f"a step{part.sizes.in_words(binding)}", plan)
        least = self._by_itself(record)
        if least > budget:
            raise InfeasibleBudgetError(
                f"a step{part.sizes.in_words(binding)} does not fit {format_bytes(budget)}: the "
                f"code outside of its part takes {format_bytes(least)}",
                plan=replace(plan, least=LeastBudget(least)),
                hint=f"budget={least}, or a smaller batch",
            )
        self.plan = plan
        log.info("%s", plan)
        if len(plan.schedule) > part.graph.num_ops:
            self._plan_smaller(record, binding)
        return plan

    def _peak_of(self, record: StepRecord, schedule: Schedule) -> int:
        """The peak of a step of one part by `schedule`, at the largest sizes."""
        index = record.keys[0][0]
        part, binding = self._parts[index], self._largest[index]
        cost = part.cost(part.add(schedule), binding)
        peak = single_peak_bytes(record, part, binding, cost, self.passing_bytes)
        return self.resident_bytes + peak

    def _by_itself(self, record: StepRecord) -> int:
        index = record.keys[0][0]
        part, binding = self._parts[index], self._largest[index]
        by_itself = bytes_by_itself(record, part, binding, self.passing_bytes)
        return self.resident_bytes + by_itself

    def _workload(
        self, record: StepRecord, part: TracedPart, binding: Binding, *, zeros: bool = False
    ) -> Graph:
        """The workload of a step of one part."""
        passing = self.passing_bytes
        held, outside = bytes_between_halves(record, part, binding, passing)
        static = self.resident_bytes + held
        return part.workload(static, outside, binding, passing, zeros=zeros)

    def _plan_smaller(self, record: StepRecord, binding: Binding) -> None:
        """Plan schedules for batches smaller than `binding`, which need less recomputation."""
        part = self._parts[record.keys[0][0]]
        assert self.budget_bytes is not None
        for share in _SMALLER_SHARES if binding else ():
            smaller = tuple(max(1, int(share * size)) for size in binding)
            cost = self._store_all(part, smaller)
            peak = single_peak_bytes(record, part, smaller, cost, self.passing_bytes)
            if self.resident_bytes + peak <= self.budget_bytes:
                return
            workload = self._workload(record, part, smaller)
            plan = self._search(workload, self.budget_bytes, 0.25)
            if plan.schedule is not None:
                part.add(plan.schedule)

    def _divided(self, record: StepRecord, chosen: dict[Key, PartCost]) -> LinePlan | None:
        """Plan as `_plan_line` does, with only the schedules that are known."""
        line = self._line(record, chosen, None)
        return line.divide(self._line_budget(line))

    def _plan_line(self, record: StepRecord, chosen: dict[Key, PartCost]) -> LinePlan:
        """The choices for a step of several parts; those `chosen` already keep no more."""
        for index in {index for index, _ in record.keys}:
            self._measure(self._parts[index], self._largest[index])
        for share in (1.0, 0.6, 0.35):
            line = self._line(record, chosen, share)
            budget = self._line_budget(line)
            found = line.divide(budget)
            if found is not None:
                return found
        assert self.plan is not None
        least = least_budget(line, budget)
        raise InfeasibleBudgetError(
            f"a step of {len(record.keys)} parts does not fit {format_bytes(budget)}: "
            f"the least found is {format_bytes(least)}",
            plan=replace(self.plan, budget_bytes=budget, least=LeastBudget(least)),
            hint=f"budget={least}, or a smaller batch",
        )

    def _line_budget(self, line: OrderedLine) -> int:
        if self.budget_bytes is None or self._is_share:
            most = line.store_all_peak()
            self.budget_bytes = budget_in_bytes(self._options.budget, most, [])
        return self.budget_bytes

    def _line(
        self, record: StepRecord, chosen: dict[Key, PartCost], share: float | None
    ) -> OrderedLine:
        parts = [self._parts[index] for index, _ in record.keys]
        sizes = [self._largest[index] for index, _ in record.keys]
        around = bytes_around_calls(record, parts, sizes, self.resident_bytes, self.passing_bytes)
        resident: dict[int, int] = {}
        for (index, _), it in zip(record.keys, around, strict=True):
            resident[index] = max(it.backward_before, resident.get(index, 0))
        choices: dict[int, tuple[PartCost, ...]] = {}
        calls = []
        for i, key in enumerate(record.keys):
            if key[0] not in choices:
                room = self._room() - resident[key[0]]
                choices[key[0]] = self._choices(parts[i], sizes[i], room, share)
            allowed = choices[key[0]]
            if key in chosen:
                allowed = tuple(c for c in allowed if c.kept_bytes <= chosen[key].kept_bytes)
            calls.append(CallInLine(allowed, *around[i]))
        return OrderedLine(tuple(calls), record.halves, record.keys)

    def _room(self) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        return 2**53

    def _choices(
        self, part: TracedPart, binding: Binding, room: int, share: float | None
    ) -> tuple[PartCost, ...]:
        """Schedules of `part` that keep different amounts, with peaks within `share` of `room`.

        Without `share`, they are the schedules that are already known.
        """
        costs = [self._store_all(part, binding)]
        costs += [part.cost(number, binding) for number in range(len(part.schedules))]
        if share is None:
            return tuple(dict.fromkeys(costs))
        budget = int(share * room)
        resident = part.input_bytes(binding) + part.given_bytes(binding)
        for kept_share in _LINE_SHARES:
            outside = budget - resident - int(kept_share * costs[0].kept_bytes)
            if outside <= 0:
                continue
            plan = self._search(part.workload(0, outside, binding), budget, 0.25)
            if plan.schedule is not None:
                costs.append(part.cost(part.add(plan.schedule), binding))
        return tuple(dict.fromkeys(costs))
