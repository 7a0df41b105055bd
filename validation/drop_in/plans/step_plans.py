"""The schedules of the parts of a step: planned for the largest sizes, evaluated for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from schedsim.dataflow.run_once import matches
from schedsim.errors import InfeasibleBudgetError

from ...guards.plan_variants import PlainStepWarning, ReplannedWarning
from ...user_warnings import warn_user
from ..drop_in_options import DropInOptions
from ..parts.part_line import LinePlan, PartCost
from ..parts.part_sizes import Binding
from ..parts.small_groups import SmallGroups
from ..parts.traced_part import TracedPart
from ..records.step_calls import StepCalls
from ..records.step_record import Key, StepKind, StepRecord, last_first
from .first_refusals import FirstRefusals
from .first_steps import LOSS_BYTES, FirstSteps
from .known_steps import KnownSteps
from .line_steps import LineSteps
from .other_sizes import OtherSizes
from .resident_by_kind import Before
from .schedule_search import ScheduleSearch
from .single_steps import number_for_all, plan_single, store_all_peak
from .unmeasured_steps import UnmeasuredSteps, record_without_measurements, with_loss

T = TypeVar("T")

_GROWS = 3
"""Times that what is resident outgrows a plan before it is taken to grow on."""


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
    known : KnownSteps
        What the plans count.
    small : SmallGroups
        Which parts of compiled steps run in small groups.
    refusals : FirstRefusals
        Refusals of graphs of the first forward, until all of its graphs are known.
    unmeasured : UnmeasuredSteps
        Kinds of steps that have run and were not measured.
    beside_bytes : Callable[[], int]
        Gives what steps of other models take at least, which may lie within those of this one.
    has_others : Callable[[], bool]
        Gives whether there are other models with a budget, or some will come.
    is_lifted
        Whether steps run by schedules of little memory, whatever the budget.
    """

    def __init__(
        self,
        options: DropInOptions,
        parts: list[TracedPart],
        before_measuring: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._parts = options, parts
        self.known = KnownSteps(options, parts, before_measuring)
        search = ScheduleSearch(options)
        self._first = FirstSteps(self.known, search)
        self._lines = LineSteps(self.known, search)
        self._sizes = OtherSizes(self.known, parts, search)
        self.small = SmallGroups(parts, self._part_is_replaced)
        self.unmeasured = UnmeasuredSteps(self.known, self._lines)
        self.known.unmeasured_bytes = self.unmeasured.least_bytes
        self.refusals = FirstRefusals(self.known, parts, self._first, self._lines, self.unmeasured)
        self._search = search
        self.beside_bytes: Callable[[], int] = lambda: 0
        self.has_others: Callable[[], bool] = lambda: False
        self.is_lifted = False
        self._num_grown = 0
        self._chosen: dict[tuple[Key, Binding], int] = {}
        self._unknown: set[str] = set()
        self._said: set[str] = set()
        self._doubt: str | None = None  # what was not planned for in the present step, in words

    # -- for the room of the allocator ------------------------------------------------------------

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, once a step has come; else ``None``."""
        return self.known.budget_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the steps planned last; ``None`` before."""
        return self.known.peak_bytes

    @property
    def is_share(self) -> bool:
        """Whether the budget was given as a share."""
        return self.known.is_share

    @property
    def room_bytes(self) -> int:
        """Bytes that plans leave to the allocator."""
        return self.known.resident.room_bytes

    @room_bytes.setter
    def room_bytes(self, num_bytes: int) -> None:
        self.known.resident.room_bytes = num_bytes

    @property
    def present(self) -> tuple[Any, ...]:
        """What tells the present plan from others."""
        return self.known.numbers, self.known.peak_bytes, self.small.num_changes

    def is_for_sizes(self, key: Key, binding: Binding) -> bool:
        """Whether a call is planned, and for these open sizes."""
        return key in self.known.numbers and binding == self.known.size_of(key)

    # -- for the session --------------------------------------------------------------------------

    def begin(self, kind: StepKind, before: Before) -> None:
        """Begin a step of this `kind`, and plan if something new was seen.

        Parameters
        ----------
        before
            What is there before the step.
        """
        self._doubt = None  # of a step whose backward has not come
        if self._sizes.take_up():
            self._chosen.clear()
        known = self.known
        known.passing_now = before.passing_bytes
        # Steps of other models, run by little memory, keep less with each turn of a round.
        growth = known.resident.begin(kind, before, anew=self.is_lifted)
        if self.is_lifted:
            return
        if len(known.records) > known.num_planned:
            self._plan_steps()
        elif not known.records:
            if growth != 0:
                self._first.clear()
            known.resident.plan(kind)
            self.refusals.divide_anew(has_grown=growth != 0)
        elif growth:
            self._grow(kind, growth)

    def _grow(self, kind: StepKind, growth: int) -> None:
        """Plan beside so many more resident bytes, if the present plans do not fit.

        What grows from step to step, as a list of results does, is planned for some steps ahead.
        """
        known = self.known
        assert known.budget_bytes is not None
        planned = [it for it in known.resident.planned_as(kind) if it in known.peaks]
        if not planned:
            return
        if max(known.peaks[it] for it in planned) + growth <= known.budget_bytes:
            known.peaks |= {it: known.peaks[it] + growth for it in planned}
            known.resident.plan(kind)
            self._chosen.clear()
            return
        self._num_grown += 1
        ahead = growth << min(self._num_grown, 10) if self._num_grown > _GROWS else 0
        before = known.resident.saved()
        known.resident.raise_present(known.resident.now.resident_bytes + ahead)
        try:
            self._plan_steps()
        except InfeasibleBudgetError:
            if not ahead:
                raise
            known.resident.restore(before)
            self._plan_steps()

    def learn(self, record: StepRecord) -> bool:
        """Take in the measurements of a step; whether a known one of its kind is forgotten."""
        self._chosen.clear()
        return self.known.learn(record)

    def measure_in_place_of(self, index: int, by: int) -> None:
        """Measure the ops of part `by` at the sizes of part `index`, which it replaces."""
        sizes, known = self._parts[by].sizes, self.known
        alike = sizes.names == self._parts[index].sizes.names and index in known.largest
        known.see_sizes(by, known.largest[index] if alike else sizes.traced)

    def plan_anew(self) -> None:
        """Plan when the next step begins: what the plans are for was not so."""
        self.known.num_planned = 0
        self._chosen.clear()
        if not self.known.passes:
            self.known.resident.forget_passing()
        if not self.known.records:
            self._first.clear()

    def is_for(self, keys: tuple[Key, ...], order: tuple[int, ...]) -> bool:
        """Whether the schedules of these calls are for this order of their halves.

        Calls of known steps that run backward from the last to the first are, unless the same calls
        were seen in other orders alone.
        """
        seen = [record.halves for record in self.known.records if record.keys == keys]
        return order in seen or (not seen and order == last_first(len(keys)))

    def replace(self, index: int, by: int) -> None:
        """Forget what is known of part `index`: part `by` runs in its place in later steps."""
        self.known.forget(index)
        self.unmeasured.replace(index, by)
        self._first.forget(index)
        self._chosen.clear()

    def planned_for(self, key: Key) -> Binding:
        """The open sizes that a call was planned for."""
        return self.known.planned[key][0]

    def number_for(
        self,
        key: Key,
        binding: Binding,
        resident_bytes: Callable[[], int],
        earlier_bytes: int,
    ) -> int:
        """The number of the schedule by which a call runs.

        Parameters
        ----------
        resident_bytes
            Gives the bytes beside the step, where they must be known.
        earlier_bytes
            Bytes that its earlier calls keep.
        """
        known = self.known
        known.see_call(key, binding)
        if key not in known.numbers:
            known.resident.raise_present(resident_bytes())
            if self.is_lifted:
                return self._least_beside(key[0], binding)
            try:
                found = self._first_beside(key[0], binding, earlier_bytes)
                if found is not None:
                    return found
                return self.small.or_small(
                    key[:1], lambda: self._first.number_for(key[0], binding, earlier_bytes)
                )
            except InfeasibleBudgetError as error:
                if key[1] and known.records:
                    return self._unforeseen(key[0], binding)
                is_late = earlier_bytes > 0
                return self.refusals.put_off(error, key, binding, is_late=is_late)
        if not binding:
            return known.numbers[key]
        at = (key, binding)
        if at not in self._chosen:
            known.take_larger_share(key, binding)
            found = self._sizes.fitting(key, binding)
            if found is None:
                found = self._grown(key, binding, earlier_bytes)
            else:
                self._sizes.improve(key, binding, found)
            self._sizes.look_ahead(key)
            quick = self._sizes.without_comparison(key, binding, found)
            if quick != found:
                return quick
            self._chosen[at] = found
        return self._chosen[at]

    # -- beside other models ----------------------------------------------------------------------

    def lift(self) -> None:
        """Run steps by schedules of little memory until they are planned again."""
        self.is_lifted = True
        self.known.numbers, self.known.planned, self.known.peaks = {}, {}, {}
        self.known.num_planned = 0
        self._first.clear()
        self._chosen.clear()

    def lower(self) -> InfeasibleBudgetError | None:
        """Plan within the budget again; the refusal of all kinds of steps, if they do not fit."""
        self.is_lifted = False
        found = [self.refusals.of_unmeasured()]
        if self.known.records:
            try:
                self._plan_steps()
            except InfeasibleBudgetError as error:
                self.known.num_planned = 0
                found.append(error.with_traceback(None))
        refused = [error for error in found if error is not None]
        return max(refused, key=lambda error: error.min_feasible_bytes or 0, default=None)

    def knows_lifted(self, key: Key) -> bool:
        """Whether a call runs by a schedule of little memory in a step that was measured before."""
        return self.is_lifted and any(key in record.keys for record in self.known.records)

    @property
    def is_measured(self) -> bool:
        """Whether each kind of step that has run was measured."""
        return self.unmeasured.is_empty

    @property
    def num_measured(self) -> int:
        """The number of kinds of steps that were measured."""
        return len(self.known.records)

    def least_bytes(self) -> int:
        """About the least that the largest graph takes, by the schedules that are known."""
        found = 0
        for index, binding in self.known.largest.items():
            part = self._parts[index]
            costs = (part.cost(number, binding) for number in range(len(part.schedules)))
            peaks = (max(it.forward_bytes, it.backward_bytes) for it in costs)
            found = max(found, min(peaks, default=0))
        return found

    def _first_beside(self, index: int, binding: Binding, earlier_bytes: int) -> int | None:
        """Such a schedule for a first step, if there are other models or kinds, and it fits.

        What others need is not known yet, and they may come while this step is open.
        """
        known = self.known
        # Another graph of a model without breaks is that of another kind of step.
        is_of_kinds = len(known.largest) > 1 and not any(it.is_followed for it in self._parts)
        if not (is_of_kinds or self.has_others()) or known.is_share:
            return None
        known.take_fixed()
        assert known.budget_bytes is not None
        beside = self.beside_bytes()
        if is_of_kinds:
            beside += self.least_bytes()
        part = self._parts[index]
        cost = part.cost(self._lines.least_number(part, binding, beside), binding)
        between = cost.kept_bytes + part.input_bytes(binding) + part.given_bytes(binding)
        most = max(cost.forward_bytes, between, cost.backward_bytes)
        static = known.resident.now.resident_bytes + earlier_bytes
        if static + most > known.budget_bytes:
            return None
        self._first.set(index, cost.number)
        return cost.number

    def beside_calls(self, number: int, key: Key, binding: Binding, earlier_bytes: int) -> int:
        """A schedule for a call in a step of a new kind, which was planned in those of another.

        Parameters
        ----------
        number
            The schedule by which it runs there.
        """
        known, part = self.known, self._parts[key[0]]
        if known.budget_bytes is None:
            return number
        beside = known.resident.now.resident_bytes + earlier_bytes
        cost = part.cost(number, binding)
        if beside + max(cost.forward_bytes, cost.backward_bytes) <= known.budget_bytes:
            return number
        return self.least_for(key, binding)

    def least_for(self, key: Key, binding: Binding) -> int:
        """The schedule of a call that leaves most to calls which no plan is for."""
        beside = self.beside_bytes() + self.least_bytes()
        return self._lines.least_number(self._parts[key[0]], binding, beside)

    def _least_beside(self, index: int, binding: Binding) -> int:
        """The schedule of part `index` that leaves most to the steps of other models."""
        part = self._parts[index]
        number = self._lines.least_number(part, binding, self.beside_bytes())
        part.trust.trust(number, binding)
        return number

    # -- sizes ------------------------------------------------------------------------------------

    def within(self, part: TracedPart, binding: Binding, beside_bytes: int) -> list[int]:
        """Schedules of `part` with which a step beside these bytes is within the budget.

        The quickest comes first: it repeats least, and so differs most from the others.
        """
        return self._sizes.within(part, binding, beside_bytes)

    def has_room_for_hooks(self, index: int) -> bool:
        """Whether the code after a backward of part `index` fits beside any point of the step.

        As where gradients reach hooks, like those that average them, before the backward ends.
        """
        known = self.known
        most = [
            stretch.most
            for record in known.records
            for key, stretch in zip(record.keys, record.after_backward, strict=True)
            if key[0] == index
        ]
        if not most or known.peak_bytes is None or known.budget_bytes is None:
            return False
        return known.peak_bytes + max(0, *most) <= known.budget_bytes

    def _part_is_replaced(self, index: int) -> None:
        """Forget the schedules of a part that runs in other groups: its steps are planned anew."""
        self._first.forget(index)
        self.known.forget_numbers(index)
        self.known.num_planned = 0
        self._chosen.clear()

    def wait(self) -> None:
        """Wait until no background search runs; the next step uses the result."""
        self._sizes.wait()

    # -- sizes that differ ------------------------------------------------------------------------

    def _grown(self, key: Key, binding: Binding, earlier_bytes: int) -> int:
        """A schedule for a call that fits by no known schedule."""
        part, sizes = self._parts[key[0]], self._sizes
        in_lines = any(key in record.keys and len(record.keys) > 1 for record in self.known.records)
        if in_lines and earlier_bytes:
            return self._late(key, binding)
        sizes.follow(key, binding)
        if in_lines and self._replan(searches=False):
            found = sizes.fitting(key, binding)
            if found is not None:
                return found
        self._say(
            f"the step is planned anew for larger inputs{part.sizes.in_words(binding)}",
            ReplannedWarning,
        )
        quick = None if in_lines else sizes.found_quickly(key, binding)
        if quick is not None:
            return quick
        self._replan()
        found = sizes.fitting(key, binding)
        if found is None and in_lines:
            return self._late(key, binding)
        return self.known.numbers[key] if found is None else found

    def _late(self, key: Key, binding: Binding) -> int:
        """The schedule of least memory, for a call larger than its step's first call implied."""
        part = self._parts[key[0]]
        self._doubt = (
            f"{part.name} has larger inputs than its step began with{part.sizes.in_words(binding)}"
        )
        self.known.num_planned = 0  # plan anew when the next step begins
        self.known.take_sizes(key, binding)
        return self._least(part, binding)

    def _unforeseen(self, index: int, binding: Binding) -> int:
        """The schedule of least memory, for one call more than steps were planned for."""
        part = self._parts[index]
        self._doubt = (
            f"{part.name} is called once more than steps were planned for, before the backwards "
            "of its earlier calls, beside which it does not fit"
        )
        return self._least(part, binding)

    def tell_doubt(self, calls: StepCalls) -> None:
        """Say so if calls that were not planned for do not fit beside the `calls` of their step.

        In a backward, when all calls are known: plans for a call may be refused beside what its
        step keeps, and its schedule of least memory fits all the same. The code between the graphs
        of a step unlike all before is not known: it is taken to be as in those.
        """
        doubt, self._doubt = self._doubt, None
        if not calls.rows or self.known.budget_bytes is None:
            return
        if doubt is None and not calls.has_backward and self.unmeasured.is_new(calls.keys):
            doubt = (
                "a step runs other graphs than those before, and what the code around them takes "
                "is measured in a later one"
            )
        if doubt is None:
            return
        record = record_without_measurements(calls)
        others = with_loss(record, LOSS_BYTES), self.unmeasured.with_code_of_others(record)
        if self._is_over(calls, others):
            self._say(f"{doubt}: this step may exceed the budget", PlainStepWarning)

    def may_exceed(self, calls: StepCalls) -> bool:
        """Whether the step of these `calls` may have exceeded the budget, as far as it is known.

        With a loss as it is guessed, where none like it was measured.
        """
        if self.known.budget_bytes is None:
            return True
        record = replace(record_without_measurements(calls), order=calls.halves)
        return self._is_over(calls, [self.unmeasured.with_guesses(record)])

    def _is_over(self, calls: StepCalls, unmeasured: Sequence[StepRecord]) -> bool:
        """Whether these `calls` take more than the budget.

        Parameters
        ----------
        unmeasured
            What to take the step for where none like it was measured.
        """
        budget, record = self.known.budget_bytes, record_without_measurements(calls)
        assert budget is not None
        alike = [known for known in self.known.records if known.is_like(record)]
        costs = [self._parts[it.key[0]].cost(it.number, it.binding) for it in calls.rows]
        return max(self._lines.peak_of(one, costs) for one in alike or unmeasured) > budget

    @staticmethod
    def _least(part: TracedPart, binding: Binding) -> int:
        """The known schedule of `part` with least memory at these sizes."""
        costs = [part.cost(number, binding) for number in range(len(part.schedules))]
        return min(costs, key=lambda cost: (cost.backward_bytes, cost.kept_bytes)).number

    def _say(self, line: str, kind: type[UserWarning]) -> None:
        if line not in self._said:
            self._said.add(line)
            warn_user(line, kind)

    # -- planning ---------------------------------------------------------------------------------

    def _plan_steps(self) -> None:
        """Divide the budget anew, for all steps seen."""
        self.known.num_planned = len(self.known.records)
        self._look_for_kept()
        self._replan()

    def _replan(self, searches: bool = True) -> bool:
        """Plan for all steps seen; returns whether there are plans without a further search."""
        num_planned, before = self.known.num_planned, self.small.num_changes
        found = self._replanned(searches)
        if self.small.num_changes != before:  # what was planned first had other groups
            found = self._replanned(searches)
            self.known.num_planned = num_planned
        return found

    def _replanned(self, searches: bool) -> bool:
        known, before = self.known, self.small.num_changes
        self._chosen.clear()
        known.resident.plan()
        numbers: dict[Key, int] = {}
        chosen: dict[Key, PartCost] = {}
        peaks: dict[StepKind, int] = {}

        def note(record: StepRecord, peak: int) -> None:
            peaks[record.kind] = max(peak, peaks.get(record.kind, 0))

        singles = [record for record in known.records if len(record.keys) == 1]
        others = [record for record in known.records if len(record.keys) > 1]
        shared = {key for record in others for key in record.keys}
        lines = [*others, *(record for record in singles if record.keys[0] in shared)]
        singles = [record for record in singles if record.keys[0] not in shared]
        if singles and not searches:
            return False
        if searches:
            known.measure_largest()
        if known.is_share:
            with self.small.in_large():
                whole = [self._lines.store_all_peak(record) for record in lines]
                known.take_share([*whole, *(store_all_peak(known, record) for record in singles)])
        else:  # after a round of several models these may be the first plans
            known.take_fixed()

        def single(record: StepRecord) -> tuple[int, int]:
            known.measure_largest()
            return plan_single(known, self._search, record)

        def line(record: StepRecord) -> LinePlan | None:
            if not searches:
                return self._lines.divided(record, chosen)
            known.measure_largest()
            is_same = self.small.num_changes == before
            return self._lines.plan(record, chosen if is_same else {})

        refused: list[InfeasibleBudgetError] = []
        by_key: dict[Key, list[tuple[StepRecord, int]]] = {}
        for record in singles:
            try:
                number, peak = self._or_small(record, single)
            except InfeasibleBudgetError as error:
                refused.append(error.with_traceback(None))
                continue
            by_key.setdefault(record.keys[0], []).append((record, number))
            note(record, peak)
        for key, planned in by_key.items():
            numbers[key] = planned[-1][1]
            if len({number for _, number in planned}) == 1:
                continue
            records, their_numbers = zip(*planned, strict=True)
            try:
                numbers[key], its_peaks = number_for_all(known, records, their_numbers)
            except InfeasibleBudgetError as error:
                refused.append(error.with_traceback(None))
                continue
            peaks |= {it.kind: peak for it, peak in zip(records, its_peaks, strict=True)}
        for record in reversed(lines):
            try:
                found = self._or_small(record, line)
            except InfeasibleBudgetError as error:
                refused.append(error.with_traceback(None))
                continue
            if found is None:
                return False
            note(record, found.peak_bytes)
            chosen.update(zip(record.keys, found.costs, strict=True))
        if refused:  # the next try would be refused again by the kind of step that takes most
            # Taken out of the list: in a cycle with this frame, it would hold the frames of a step
            # that goes on all the same, and with them all that this keeps.
            refused.sort(key=lambda error: error.min_feasible_bytes or 0)
            raise refused.pop()
        numbers |= {key: cost.number for key, cost in chosen.items()}
        known.peaks, known.numbers = peaks, numbers
        for key, number in numbers.items():
            binding = known.size_of(key)
            known.planned[key] = (binding, self._parts[key[0]].cost(number, binding))
        return True

    def _or_small(self, record: StepRecord, plan: Callable[[StepRecord], T]) -> T:
        """The `plan` of a step, with its compiled parts in small groups if there is none else."""
        return self.small.or_small((index for index, _ in record.keys), lambda: plan(record))

    def _look_for_kept(self) -> None:
        """Warn of patterns that name nothing, once the parts are known."""
        names = [name for part in self._parts for name in part.graph.op_names]
        for pattern in self._options.keep:
            if not any(matches(name, pattern) for name in names) and pattern not in self._unknown:
                self._unknown.add(pattern)
                warn_user(f"keep={pattern!r} names no op of the step")
