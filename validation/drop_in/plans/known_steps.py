"""What is known of the steps of a model: their parts, their measurements, and the bytes beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from schedsim import Graph, Schedule, simulate
from schedsim.plans.plan import Plan

from ...whole_step.step_budget import budget_in_bytes
from ..drop_in_options import DropInOptions
from ..parts.part_line import PartCost
from ..parts.part_sizes import Binding
from ..parts.planned_part import PlannedPart
from ..records.step_record import (
    Key,
    StepKind,
    StepRecord,
    bytes_between_halves,
    bytes_by_itself,
    single_peak_bytes,
)
from .resident_by_kind import Before, ResidentByKind

_LONGER = 1.25
"""Growth of outputs over all before at which the code around is measured again."""


class KnownSteps:
    """The steps seen, and what their plans count.

    Parameters
    ----------
    parts
        Parts seen so far; more may come.
    before_measuring
        Function that is called before ops are measured.

    Attributes
    ----------
    records
        A record of each kind of step seen, the one with the largest outputs.
    num_planned
        Number of these that plans are for; 0 where all are to be planned anew.
    largest
        For each part, the largest open sizes that plans are for.
    sizes
        For each call, those that plans are for: one of a part may always be smaller than another.
    numbers, planned
        For each call that is planned: the number of its schedule; its sizes, and its cost there.
    budget_bytes
        The budget in bytes, once a step has come.
    peaks
        Predicted peak of the steps planned last, for each kind of them.
    plan
        The plan that was made last.
    resident
        What is there beside steps of each kind.
    passing_now
        Bytes of results of earlier steps, before the present one, that are gone before the first
        backward.
    passes
        Whether results of earlier steps are taken to go so.
    made_bytes
        Bytes of the states of optimizers at present that nothing has foreseen.
    growing_bytes
        Bytes by which the histories of optimizers will still grow.
    others_bytes, others_hold_bytes
        What open steps of other models keep, and their parameters, gradients and optimizers' states
        on a CPU, as the last step began.
    adam_bytes : Callable[[], int]
        Gives the bytes of the states of Adam for what the parts train and no optimizer has stepped,
        as far as it is known.
    gradient_bytes : Callable[[], int]
        Gives the bytes of gradients that are to come: a loop may hold them through a forward.
    late_gradient_bytes : Callable[[], int]
        Gives those of them that will stay through forwards, as the loop holds others at present.
    optimizer_bytes : Callable[[], int]
        Gives what the step of an optimizer takes in all: measured, or that of Adam.
    unmeasured_bytes : Callable[[], int]
        Gives the least budget of kinds of steps that have run and were not measured.
    is_recorded : Callable[[], bool]
        Gives whether the running step is recorded, which measurements of ops would end.
    uncounted_bytes : Callable[[], int]
        Gives the least budget beside what loops hold that no plan of any model counts, as a line
        has said.
    """

    def __init__(
        self,
        options: DropInOptions,
        parts: Sequence[PlannedPart],
        before_measuring: Callable[[], None] = lambda: None,
    ) -> None:
        self.options, self.parts = options, parts
        self._before_measuring = before_measuring
        self.records: list[StepRecord] = []
        self.num_planned = 0
        self.largest: dict[int, Binding] = {}
        self.sizes: dict[Key, Binding] = {}
        self.numbers: dict[Key, int] = {}
        self.planned: dict[Key, tuple[Binding, PartCost]] = {}
        self.budget_bytes: int | None = None
        self.peaks: dict[StepKind, int] = {}
        self.plan: Plan | None = None
        self.resident = ResidentByKind(lambda: {it.kind for it in self.records})
        self.passing_now = 0
        self.passes = True
        self.made_bytes = self.growing_bytes = 0
        self.others_bytes = self.others_hold_bytes = 0
        self.adam_bytes: Callable[[], int] = lambda: 2 * sum(it.gradient_bytes for it in self.parts)
        self.optimizer_bytes: Callable[[], int] = lambda: 0
        self.gradient_bytes: Callable[[], int] = lambda: 0
        self.late_gradient_bytes: Callable[[], int] = lambda: 0
        self.unmeasured_bytes: Callable[[], int] = lambda: 0
        self.uncounted_bytes: Callable[[], int] = lambda: 0
        self.is_recorded: Callable[[], bool] = lambda: False
        self._replaced: set[int] = set()

    # -- what is seen -----------------------------------------------------------------------------

    def see_sizes(self, index: int, binding: Binding) -> None:
        """Note the largest batch, for which plans are made."""
        part = self.parts[index]
        if not part.is_measured:
            self.measure(part, part.sizes.limit(binding, self.options.largest))
        binding = part.sizes.limit(binding, self.options.largest)
        if _is_larger(part, binding, self.largest.get(index)):
            self.largest[index] = binding

    def see_call(self, key: Key, binding: Binding) -> None:
        """Note the largest batch of a call, for which it is planned."""
        self.see_sizes(key[0], binding)
        part = self.parts[key[0]]
        binding = part.sizes.limit(binding, self.options.largest)
        if _is_larger(part, binding, self.sizes.get(key)):
            self.sizes[key] = binding

    def take_sizes(self, key: Key, binding: Binding) -> None:
        """Plan a call for these sizes from now on."""
        self.sizes[key] = binding
        if _is_larger(self.parts[key[0]], binding, self.largest.get(key[0])):
            self.largest[key[0]] = binding

    def size_of(self, key: Key) -> Binding:
        """The open sizes that plans for a call are for."""
        return self.sizes.get(key, self.largest[key[0]])

    def measure(self, part: PlannedPart, binding: Binding) -> None:
        """Measure the ops of `part` at these sizes, if they were not."""
        if binding not in part.sizes.measured:
            self._before_measuring()
            part.measure(binding)

    def measure_largest(self) -> None:
        """Measure the ops of all steps seen at the sizes that plans are for."""
        for key in dict.fromkeys(key for record in self.records for key in record.keys):
            self.measure(self.parts[key[0]], self.size_of(key))

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
                self.num_planned = 0
        elif same and same[0].passing_bytes != record.passing_bytes:
            self.num_planned = 0
        self.records = [known for known in self.records if not known.is_like(record)] + [record]
        return is_forgotten

    def forget(self, index: int) -> None:
        """Forget the steps in which part `index` ran: no other will."""
        self._replaced.add(index)
        self.records = [
            record for record in self.records if all(key[0] != index for key in record.keys)
        ]
        self.num_planned = min(self.num_planned, len(self.records))
        self.forget_numbers(index)

    def forget_numbers(self, index: int) -> None:
        """Forget the schedules by which the calls of part `index` were to run."""
        for key in [key for key in self.numbers if key[0] == index]:
            del self.numbers[key], self.planned[key]

    @property
    def wants_passing(self) -> bool:
        """Whether the code between halves is still to be measured beside such results."""
        known = max((record.passing_bytes for record in self.records), default=0)
        return self.passes and self.passing_now > _LONGER * known

    def is_longest(self, key: Key, binding: Binding) -> bool:
        """Whether this call's outputs are so large that the code around it must be measured."""
        if not binding:
            return False
        part = self.parts[key[0]]
        found = [
            part.output_bytes(record.bindings[record.keys.index(key)])
            for record in self.records
            if key in record.keys
        ]
        return bool(found) and part.output_bytes(binding) > _LONGER * max(found)

    def _output_bytes(self, record: StepRecord) -> int:
        calls = zip(record.keys, record.bindings, strict=True)
        return sum(self.parts[index].output_bytes(binding) for (index, _), binding in calls)

    # -- what plans count -------------------------------------------------------------------------

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the steps planned last; ``None`` before."""
        return max(self.peaks.values(), default=None)

    def is_new(self, kind: StepKind) -> bool:
        """Whether steps of this `kind` run by plans for others, and none was measured."""
        return bool(self.records) and self.resident.planned_as(kind) != [kind]

    def beside(self, record: StepRecord) -> Before:
        """What is there beside steps like this one."""
        return self.resident.of(record.kind)

    @property
    def coming_bytes(self) -> int:
        """Bytes of the states of Adam for what no optimizer has stepped; 0 where one is named."""
        return 0 if self.options.optimizer is not None else self.adam_bytes()

    @property
    def is_share(self) -> bool:
        """Whether the budget is given as a share of the peak of a step that keeps everything."""
        return self.options.is_share

    def budget_for(self, workload: Graph) -> int:
        """The budget in bytes; a share is taken of the known store-all peak of a step."""
        if self.budget_bytes is None or not self.records:
            store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
            self.budget_bytes = budget_in_bytes(self.options.budget, store_all, [])
        return self.budget_bytes

    def take_share(self, store_all_peaks: Iterable[int]) -> None:
        """Take a share of the largest of these steps, which keep everything, as the budget."""
        most = max(store_all_peaks)
        self.budget_bytes = budget_in_bytes(self.options.budget, most, [])

    def take_fixed(self) -> None:
        """Take a budget that is no share, which waits for no step, as the budget."""
        if self.budget_bytes is None:
            self.budget_bytes = budget_in_bytes(self.options.budget, 0, [])

    def budget_at(self, record: StepRecord, binding: Binding) -> int:
        """The budget of a step of one part at the sizes of `binding`.

        A share is one of the largest step, so that a larger one has more.
        """
        assert self.budget_bytes is not None
        if not self.is_share:
            return self.budget_bytes
        part, _ = self.single(record)
        peak = self.single_peak(record, part, binding, part.store_all_cost(binding))
        return max(self.budget_bytes, budget_in_bytes(self.options.budget, peak, []))

    def take_larger_share(self, key: Key, binding: Binding) -> None:
        """Take a share as one of the step with this call at these sizes, if that is the largest."""
        if not self.is_share or self.budget_bytes is None:
            return
        singles = [record for record in self.records if record.keys == (key,)]
        budgets = [self.budget_at(record, binding) for record in singles]
        self.budget_bytes = max([self.budget_bytes, *budgets])

    def store_all_bytes(self) -> int:
        """Bytes that the parts keep if nothing is recomputed."""
        return sum(
            part.store_all_cost(part.sizes.traced).backward_bytes
            for index, part in enumerate(self.parts)
            if index not in self._replaced
        )

    def single(self, record: StepRecord) -> tuple[PlannedPart, Binding]:
        """The only part of a step, and the largest sizes seen of it."""
        key = record.keys[0]
        return self.parts[key[0]], self.size_of(key)

    def workload(
        self, record: StepRecord, part: PlannedPart, binding: Binding, *, zeros: bool = False
    ) -> Graph:
        """The workload of a step of one part."""
        resident, passing = self._resident_and_passing(record)
        held, outside = bytes_between_halves(record, part, binding, passing)
        static = resident + held
        return part.workload(static, outside, binding, passing, zeros=zeros)

    def peak_of(self, record: StepRecord, schedule: Schedule) -> int:
        """The peak of a step of one part by `schedule`, at the largest sizes."""
        part, binding = self.single(record)
        cost = part.cost(part.add(schedule), binding)
        return self.single_peak(record, part, binding, cost)

    def single_peak(
        self, record: StepRecord, part: PlannedPart, binding: Binding, cost: PartCost
    ) -> int:
        """The peak of a step of one part at the sizes of `binding`, where the part costs `cost`."""
        resident, passing = self._resident_and_passing(record)
        return resident + single_peak_bytes(record, part, binding, cost, passing)

    def by_itself(self, record: StepRecord) -> int:
        """The least peak of a step of one part, whatever the part's schedule."""
        resident, passing = self._resident_and_passing(record)
        return resident + bytes_by_itself(record, *self.single(record), passing)

    def _resident_and_passing(self, record: StepRecord) -> tuple[int, int]:
        before = self.beside(record)
        return before.resident_bytes, before.passing_bytes


def _is_larger(part: PlannedPart, binding: Binding, known: Binding | None) -> bool:
    """Whether a call at `binding` keeps more than one at the `known` sizes, if any are."""
    if known is None or binding == known:
        return known is None
    return part.store_all_cost(binding).kept_bytes > part.store_all_cost(known).kept_bytes
