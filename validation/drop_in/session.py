"""The steps of one compiled model: which parts they run, and by which schedules."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from schedsim import Graph, Schedule, simulate
from schedsim.api import try_plan
from schedsim.dataflow.run_once import matches
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..measure.allocator import close_later
from ..measure.cuda import requested_bytes
from ..step_budget import budget_in_bytes
from ..torch_private.storage_refs import StorageWeakRef, is_gone, weakly
from .drop_in_options import DropInOptions
from .held_state import HeldState
from .outside_code import OutsideBytes, OutsideMeter, outside_meter
from .part_line import CallInLine, LinePlan, PartCost, divide
from .traced_part import TracedPart

log = logging.getLogger("schedsim.drop_in")

Key = tuple[int, int]
"""Index of a part, and how often it has been called in the step before."""

_KEPT_SHARES = (0.25, 0.5, 0.0)
_LINE_SHARES = (0.7, 0.45, 0.25, 0.1)
_MOST_LINES = 8
_GUESSED_OUTPUTS = 3
"""Sizes of the outputs that a loss takes, before it is measured: a copy, its own, a gradient."""


@dataclass
class PartCall:
    """A forward of a part in the present step, whose backward may still come.

    Attributes
    ----------
    header, place
        Lives as long as what the forward has saved, and where it is meanwhile.
    kept_bytes
        Predicted: saved by it, and its outputs.
    shared_bytes
        Of inputs that are outputs of earlier calls.
    """

    key: Key
    part: TracedPart
    number: int
    kept_bytes: int
    shared_bytes: int
    header: StorageWeakRef | None = None
    place: int = 0
    outputs: tuple[int, ...] = ()
    is_done: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its backward may still come."""
        if self.is_done:
            return False
        return self.header is None or not is_gone(self.header)


@dataclass(frozen=True)
class StepRecord:
    """The parts that a step called, and what the code between them took.

    Attributes
    ----------
    after_forward
        Of each call, the code after its forward, to the next part.
    after_backward
        Of each call, the code after its backward, to the next part in backward.
    """

    keys: tuple[Key, ...]
    shared_bytes: tuple[int, ...]
    after_forward: tuple[OutsideBytes, ...]
    after_backward: tuple[OutsideBytes, ...]


class Session:
    """Plans for the parts of the steps of one `torch.compile`.

    The first step that is whole is run frugally and its code between the parts is measured; from
    the next on the budget is divided among the parts by what was seen.

    Attributes
    ----------
    budget_bytes
        Once a step has come.
    peak_bytes
        Predicted, of the steps planned last; ``None`` before.
    numbers
        Of schedules, by part and how often it has been called in the step before.
    check_note
        How a step compared with the plain one.
    is_rehearsing
        What runs is no step of the loop: nothing is learnt of it.
    """

    def __init__(self, options: DropInOptions) -> None:
        self.options = options
        self.parts: list[TracedPart] = []
        self.budget_bytes: int | None = None
        self.peak_bytes: int | None = None
        self.plan: Plan | None = None
        self.num_forwards = 0
        self.is_rehearsing = False
        self.check_note = "not compared with the plain step"
        self._held = HeldState(options)
        self._calls: list[PartCall] = []
        self.numbers: dict[Key, int] = {}
        self._frugal: dict[int, int] = {}
        self._costs: dict[tuple[int, int], PartCost] = {}
        self._records: list[StepRecord] = []
        self._unknown: set[str] = set()
        self._num_looks = 0
        self._planned_bytes = -1
        self._planned_records = 0
        self._is_missing = True
        self._meter: OutsideMeter | None = None
        self._marks: list[tuple[str, int]] = []

    def add(self, part: TracedPart) -> None:
        """Take `part` among those that steps may run."""
        self.parts.append(part)

    # -- what the parts report --------------------------------------------------------------------

    def forward_begins(self, part: TracedPart, arguments: list[Any]) -> int:
        """The number of the schedule by which `part` shall run."""
        self.num_forwards += 1
        self._held.see(arguments[i] for i in part.fixed_positions)
        if not any(call.is_open for call in self._calls):
            self._begin_step(part, arguments)
        self._mark("forward")
        index = self.parts.index(part)
        key = (index, sum(call.part is part and call.is_open for call in self._calls))
        if not part.is_measured:
            self._stop_measuring()  # what ops take is measured by the same profiler
            part.measure()
        number = self.numbers.get(key)
        if number is None:
            self._is_missing = True
            number = self._frugal_number(part)
        self._calls.append(
            PartCall(
                key, part, number, self._cost(part, number).kept_bytes, self._shared(arguments)
            )
        )
        return number

    def forward_ends(self, part: TracedPart, outputs: list[Any], header: torch.Tensor) -> None:
        """Its saved tensors live as long as `header`."""
        call = self._calls[-1]
        call.header = weakly(header)
        call.place = header.data_ptr()
        call.outputs = tuple(t.untyped_storage().data_ptr() for t in outputs)
        self._mark("after forward")

    def backward_begins(self, part: TracedPart, header: torch.Tensor) -> None:
        """The backward half of a call of `part` is about to run."""
        self._mark("backward")

    def backward_ends(self, part: TracedPart, header: torch.Tensor) -> None:
        """The backward half of a call of `part` has run."""
        self._mark("after backward")
        for call in self._calls:
            if call.place == header.data_ptr():
                call.is_done = True
        if self._meter is not None and all(call.is_done for call in self._calls):
            # Backward runs with a copy of the thread's state, which would begin the record again.
            close_later(self._read_step)

    def _shared(self, arguments: list[Any]) -> int:
        made = {place for call in self._calls if call.is_open for place in call.outputs}
        found = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for t in arguments
            if isinstance(t, torch.Tensor)
        }
        return sum(size for place, size in found.items() if place in made)

    # -- steps ------------------------------------------------------------------------------------

    def _resident_bytes(self, part: TracedPart, arguments: list[Any]) -> int:
        """What is there before a step, its inputs aside."""
        found = self._held.total_bytes
        if part.device == "cuda":
            device = next(t.device for t in arguments if isinstance(t, torch.Tensor) and t.is_cuda)
            found = max(found, requested_bytes(device) - part.input_bytes)
        return found

    def _begin_step(self, part: TracedPart, arguments: list[Any]) -> None:
        self._read_step()
        self._stop_measuring()
        self._calls = []
        now = self._resident_bytes(part, arguments)
        if len(self._records) > self._planned_records or (
            self._records and now > self._planned_bytes
        ):
            self._planned_bytes = max(now, self._planned_bytes)
            self._plan_steps()
        elif not self._records and now > self._planned_bytes:
            self._planned_bytes = now
            self._frugal.clear()
        may_look = len(self._records) < _MOST_LINES and self._num_looks < 4 * _MOST_LINES
        if self._is_missing and may_look and not self.is_rehearsing:
            self._is_missing = False
            self._num_looks += 1
            if all(part.is_measured for part in self.parts):
                meter = outside_meter(torch.device(part.device))
                if meter is not None:
                    meter.start()
                self._meter, self._marks = meter, []

    def _mark(self, what: str) -> None:
        if self._meter is not None:
            self._meter.mark()
            self._marks.append((what, len(self._calls) - 1))

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.stop()
            self._meter = None
            self._is_missing = True

    def _read_step(self) -> None:
        if self._meter is None or not self._calls or any(not c.is_done for c in self._calls):
            return
        stretches, self._meter = self._meter.stop(), None
        after: dict[str, list[OutsideBytes]] = {"after forward": [], "after backward": []}
        if len(stretches) != len(self._marks) + 1:  # backward ran otherwise than once after all
            self._is_missing = True
            return
        for (what, _), stretch in zip(self._marks, stretches[1:], strict=True):
            if what in after:
                after[what].append(stretch)
        record = StepRecord(
            tuple(call.key for call in self._calls),
            tuple(call.shared_bytes for call in self._calls),
            tuple(after["after forward"]),
            tuple(reversed(after["after backward"])),
        )
        if len(record.after_backward) == len(self._calls):
            self._records = [r for r in self._records if r.keys != record.keys] + [record]

    # -- planning ---------------------------------------------------------------------------------

    def _budget(self, workload: Graph) -> int:
        """In bytes; a share is of the store-all peak of what is known of a step."""
        if self.budget_bytes is None or not self._records:
            store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
            self.budget_bytes = budget_in_bytes(self.options.budget, store_all, [])
        return self.budget_bytes

    def _frugal_number(self, part: TracedPart) -> int:
        """A schedule that leaves room for whatever may follow."""
        index = self.parts.index(part)
        if index in self._frugal:
            return self._frugal[index]
        self._planned_bytes = max(self._planned_bytes, self._held.total_bytes)
        earlier = sum(call.kept_bytes for call in self._calls if call.is_open)
        static = self._planned_bytes + earlier
        guessed = _GUESSED_OUTPUTS * part.output_bytes
        budget = self._budget(part.workload(static, guessed))
        store_all = self._cost(part, part.add(Schedule.store_all(part.graph)))
        room = budget - static - part.input_bytes - part.given_bytes
        plan: Plan | None = None
        for share in _KEPT_SHARES:
            # Of the last, whatever is kept: nothing else is known to follow but a loss.
            outside = max(guessed, room - int(share * store_all.kept_bytes)) if share else guessed
            plan = self._search(part.workload(static, outside), budget, 0.3)
            if plan.schedule is not None:
                break
        assert plan is not None
        if plan.schedule is None:
            raise self._infeasible(part.name, plan)
        self.plan = plan
        number = self._frugal[index] = part.add(plan.schedule)
        return number

    def _search(self, workload: Graph, budget_bytes: int, share: float) -> Plan:
        options: dict[str, Any] = {}
        if self.options.planner == "auto":
            options["effort"] = max(0.2, share * self.options.effort)
            if self.options.time_limit_s is not None:
                options["time_limit_s"] = self.options.time_limit_s
        return try_plan(workload, max(1, budget_bytes), self.options.planner, **options)

    def _infeasible(self, name: str, plan: Plan) -> InfeasibleBudgetError:
        assert self.budget_bytes is not None
        least = plan.min_feasible_bytes
        return InfeasibleBudgetError(
            f"{name} does not fit {format_bytes(self.budget_bytes)}"
            + (f": {plan.least.sentence(plan.binding_op or '')}" if least else ""),
            plan=plan,
            hint=(f"budget={least}, " if least else "give more, ")
            + "a smaller batch, or a smaller optimizer state",
        )

    def _cost(self, part: TracedPart, number: int) -> PartCost:
        at = (self.parts.index(part), number)
        if at not in self._costs:
            self._costs[at] = part.cost(number)
        return self._costs[at]

    def _plan_steps(self) -> None:
        """Divide the budget anew, for all steps seen."""
        self._planned_records = len(self._records)
        self._look_for_kept()
        record = self._records[-1]
        if len(record.keys) == 1 and len(self._records) == 1:
            self._plan_single(record)
            return
        chosen: dict[Key, PartCost] = {}
        most = 0
        for record in reversed(self._records):
            found = self._plan_line(record, chosen)
            most = max(most, found.peak_bytes)
            chosen.update(zip(record.keys, found.costs, strict=True))
        self.peak_bytes = most
        self.numbers = {key: cost.number for key, cost in chosen.items()}

    def _look_for_kept(self) -> None:
        """Warn of patterns that name nothing, once the parts are known."""
        names = [name for part in self.parts for name in part.graph.op_names]
        for pattern in self.options.keep:
            if not any(matches(name, pattern) for name in names) and pattern not in self._unknown:
                self._unknown.add(pattern)
                warnings.warn(f"keep={pattern!r} names no op of the step", stacklevel=2)

    def _plan_single(self, record: StepRecord) -> None:
        """Of a step of one part: the code between its halves is one op of its graph."""
        (key,) = record.keys
        part = self.parts[key[0]]
        outside = max(0, record.after_forward[0].most - part.given_bytes)
        workload = part.workload(self._planned_bytes, outside)
        budget = self._budget(workload)
        if isinstance(self.options.budget, str):
            store_all = simulate(workload, Schedule.store_all(workload)).peak_bytes
            budget = self.budget_bytes = budget_in_bytes(self.options.budget, store_all, [])
        plan = self._search(workload, budget, 1.0)
        if plan.schedule is None:
            raise self._infeasible("a step", plan)
        self.plan, self.peak_bytes = plan, plan.peak_bytes
        self.numbers = {key: part.add(plan.schedule)}
        log.info("%s", plan)

    def _plan_line(self, record: StepRecord, chosen: dict[Key, PartCost]) -> LinePlan:
        """The choices for a step of several parts; those `chosen` already keep no more."""
        for share in (1.0, 0.6, 0.35):
            calls = self._calls_in_line(record, chosen, share)
            budget = self._line_budget(calls)
            found = divide(calls, budget)
            if found is not None:
                return found
        assert self.plan is not None
        too_little, least = budget, 2 * budget
        while divide(calls, least) is None:
            least *= 2
        while least - too_little > budget // 100:
            middle = (least + too_little) // 2
            if divide(calls, middle) is None:
                too_little = middle
            else:
                least = middle
        raise InfeasibleBudgetError(
            f"a step of {len(record.keys)} parts does not fit {format_bytes(budget)}: "
            f"the least found is {format_bytes(least)}",
            plan=replace(self.plan, budget_bytes=budget, least=LeastBudget(None, None, least)),
            hint=f"budget={least}, or a smaller batch",
        )

    def _line_budget(self, calls: list[CallInLine]) -> int:
        if self.budget_bytes is None or isinstance(self.options.budget, str):
            every = divide([_store_all_only(call) for call in calls], 2**62)
            most = every.peak_bytes if every is not None else 0
            self.budget_bytes = budget_in_bytes(self.options.budget, most, [])
        return self.budget_bytes

    def _calls_in_line(
        self, record: StepRecord, chosen: dict[Key, PartCost], share: float
    ) -> list[CallInLine]:
        parts = [self.parts[index] for index, _ in record.keys]
        before, calls = self._planned_bytes, []
        later = [0] * (len(parts) + 1)  # gradients and the like that backward leaves
        for i in reversed(range(len(parts))):
            left = record.after_backward[i].left if i else 0
            later[i] = later[i + 1] + parts[i].gradient_bytes + left
        last_left = max(0, record.after_forward[-1].left - parts[-1].given_bytes)
        grown = 0
        choices: dict[int, tuple[PartCost, ...]] = {}
        for i, (key, part) in enumerate(zip(record.keys, parts, strict=True)):
            if key[0] not in choices:
                room = self._room() - before - later[i + 1] - grown
                choices[key[0]] = self._choices(part, room, share)
            allowed = choices[key[0]]
            if key in chosen:
                allowed = tuple(c for c in allowed if c.kept_bytes <= chosen[key].kept_bytes)
            after = record.after_forward[i]
            is_last = i == len(parts) - 1
            most = after.most - part.given_bytes if is_last else after.most
            calls.append(
                CallInLine(
                    allowed,
                    record.shared_bytes[i],
                    before + grown,
                    max(0, most) + (part.given_bytes if is_last else 0),
                    before + grown + later[i + 1] + last_left,
                )
            )
            grown += 0 if is_last else after.left
        return calls

    def _room(self) -> int:
        if self.budget_bytes is not None:
            return self.budget_bytes
        return 2**53

    def _choices(self, part: TracedPart, room: int, share: float) -> tuple[PartCost, ...]:
        """Schedules of `part` that keep different amounts, with peaks within `share` of `room`."""
        store_all = part.add(Schedule.store_all(part.graph))
        costs = [self._cost(part, store_all)]
        costs += [self._cost(part, number) for number in range(len(part.schedules))]
        budget = int(share * room)
        for kept_share in _LINE_SHARES:
            kept = int(kept_share * costs[0].kept_bytes)
            outside = budget - part.input_bytes - part.given_bytes - kept
            if outside <= 0:
                continue
            plan = self._search(part.workload(0, outside), budget, 0.25)
            if plan.schedule is not None:
                costs.append(self._cost(part, part.add(plan.schedule)))
        return tuple(dict.fromkeys(costs))

    @property
    def store_all_bytes(self) -> int:
        """About what a step takes that recomputes nothing, as far as its parts are known."""
        kept = 0
        for part in self.parts:
            kept += self._cost(part, part.add(Schedule.store_all(part.graph))).backward_bytes
        return kept + self._held.total_bytes

    # -- for people -------------------------------------------------------------------------------

    def report(self) -> str:
        """What was planned; for people."""
        if self.budget_bytes is None:
            return "no step has come yet"
        counted = Counter(key[0] for key in self.numbers)
        lines = [f"budget {format_bytes(self.budget_bytes)}"]
        lines.append(f"  resident       {format_bytes(max(0, self._planned_bytes))}")
        if self.peak_bytes is not None:
            lines.append(f"  predicted peak {format_bytes(self.peak_bytes)}")
        for key, number in self.numbers.items():
            part, cost = self.parts[key[0]], self._cost(self.parts[key[0]], number)
            plain = sum(op.time_s for op in part.graph.ops)
            extra = f"{cost.time_s / plain - 1:+.2%}" if plain else ""
            place = f", call {key[1] + 1} of {counted[key[0]]}" if counted[key[0]] > 1 else ""
            lines.append(
                f"  {part.name}{place}: keeps {format_bytes(cost.kept_bytes)}, time {extra}"
            )
        lines.append(f"  check          {self.check_note}")
        return "\n".join(lines)


def _store_all_only(call: CallInLine) -> CallInLine:
    return replace(call, choices=call.choices[:1])
