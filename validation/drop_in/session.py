"""The steps of one compiled model: the parts that they run, and the memory of code between them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..compiled.group import Groups
from ..guards.plan_variants import PlainStepWarning, ReplannedWarning
from ..measure.allocator import NO_BLOCKS, close_later, close_waiting, is_recording, records_ended
from ..measure.cuda import requested_bytes
from ..measure.storage import bytes_by_place
from ..torch_private.graph_tasks import keeps_graph, when_backward_ends
from ..torch_private.profiler_records import is_profiling
from ..torch_private.storage_refs import weakly
from .behind_backward import BehindBackward
from .call_report import describe_calls, describe_checks
from .drop_in_options import DropInOptions
from .earlier_results import EarlierResults
from .held_state import HeldState, may_record
from .optimizer_steps import OptimizerSteps, close_all
from .output_uses import OutputUse, alive_bytes, gone_among, results_of
from .outside_code import OutsideBytes, outside_meter
from .part_sizes import Binding
from .planned_part import PlannedPart
from .record_turns import RecordTurns
from .step_calls import Forgotten, PartCall, StepCalls
from .step_meter import OVER, StepMeter
from .step_plans import StepPlans
from .step_record import NOTHING, Key
from .traced_part import TracedPart

_FEW = 2**-10
"""Share of the budget up to which results of earlier steps are a few, as their losses."""
_ROOM_BYTES = 256
"""Room for a few results, and for four times as many where they outgrow it, and so on.

They grow from step to step, and no step is to be planned anew for each.
"""
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _if_alive(end: weakref.WeakMethod[Callable[[], bool]]) -> bool:
    """A record that waits for its end keeps no model alive."""
    ended = end()
    return ended is not None and ended()


def _room_for(num_bytes: int) -> int:
    """Bytes that are set aside for `num_bytes`, which may become more."""
    room = _ROOM_BYTES if num_bytes else 0
    while room < num_bytes:
        room *= 4
    return room


class Session:
    """The state that the parts of the steps of one `torch.compile` share.

    The first whole step runs frugally, and the code between its parts is measured; from the next
    step on, the budget is divided among the parts by these measurements.

    Attributes
    ----------
    plans : StepPlans
        Chooses the schedules by which parts run.
    check_note
        How a step compared with the plain one, in words.
    checks
        Whether a new schedule is compared with another one before it runs.
    num_compared
        Number of steps of the loop that were compared with the plain one.
    is_rehearsing
        Whether the running step is no step of the loop, so that nothing is learnt from it.
    says_plain
        Whether a line has said why a graph runs as it is.
    """

    def __init__(self, options: DropInOptions) -> None:
        self.options = options
        self.parts: list[TracedPart] = []
        self.groups = Groups()  # equal code of all parts is compiled once
        # Ops are measured by the same profiler that measures the code between parts.
        self.plans = StepPlans(options, self.parts, self._stop_measuring)
        self.num_forwards = 0
        self.is_rehearsing = self.says_plain = False
        self.checks = options.check != "never"
        self.num_compared = 0
        self.tracing: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.check_note = "not compared with the plain step"
        self._held = HeldState(options)
        self._behind = BehindBackward(self._held)
        self._optimizers = OptimizerSteps(self._held, self._bytes_around)
        self._says_behind = self._ignores_left = False
        self._behind_bytes = 0  # the peak of the code there, in the step that was measured last
        # What the step is given that begins, where one does; by its addresses.
        self._coming: dict[int, int] | None = None
        self._calls = StepCalls()
        self._forgotten = Forgotten()
        self._left: list[PartCall] = []  # calls that are held through many steps
        self._earlier = EarlierResults()
        self._turns = RecordTurns()
        self._meter: StepMeter | None = None
        # Bytes by the address of the storage: of the inputs of the model's next forward, and of
        # what the present step was given.
        self._handed: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._made_before = 0  # bytes of what the first part reads and the code before it has made
        # Whether a record may start in the step that has begun; None where only parts say so.
        self._may_start: bool | None = None
        self._front = NOTHING
        self._sees_at_end = False  # whether the running backward ends with a look at the outputs
        self._is_spoiled = False  # whether the present step ran what no later step will
        _sessions.add(self)

    def running(self) -> AbstractContextManager[None]:
        """Around a forward of the whole model, for sessions of several ranks."""
        return nullcontext()

    def telling(self) -> AbstractContextManager[None]:
        """Around the backward of a part, for sessions of several ranks."""
        return nullcontext()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Mark the block as no step of the loop; it may come in the middle of a step."""
        before, calls, self.is_rehearsing = self.is_rehearsing, self._calls, True
        resident_bytes = self.plans.known.resident_bytes
        self._calls = calls.copy()
        self._stop_measuring()
        try:
            yield
        finally:
            self.is_rehearsing = before
            self.plans.leave_rehearsal(resident_bytes)
            # The loop's calls: those of the block may live on, in a cycle.
            self._calls = calls

    def note(self, line: str) -> None:
        """Add `line` to the report, once."""
        if line not in self.check_note:
            self.check_note += f"; {line}"

    def add(self, part: TracedPart) -> None:
        """Add `part` to the parts that steps may run."""
        self.parts.append(part)

    @property
    def follows_gradients(self) -> bool:
        """Whether graphs are traced again for gradients in strides that were not foreseen.

        Several ranks would have to trace together, and Inductor's steps round differently anyway.
        """
        return not (self.options.compile or self.is_distributed)

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks run the step."""
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def replace(self, part: TracedPart, by: TracedPart, why: str) -> None:
        """Forget the steps that ran `part`: later ones run `by` in its place, and `why`."""
        self.plans.forget(self.parts.index(part))
        self._is_spoiled = True
        self.note(f"{by.name} runs in the place of {part.name}: {why}")

    def step_begins(self, inputs: Any) -> None:
        """A forward of the whole model is about to run; the first part will say more."""
        self._handed = bytes_by_place(inputs)
        self._leave_behind()
        self._coming = self._handed
        was_recording = close_all()
        if self.parts and not self._calls.is_open:
            self._may_start = self._end_step() and not was_recording
            if self._may_start and self._turns.is_missing:
                self._start_measuring(torch.device(self.parts[0].device))

    def evaluation_begins(self) -> None:
        """A forward of the whole model is about to run as it is."""
        close_all()

    def evaluation_ends(self, outputs: Any) -> None:
        """Such a forward has run, and a later step may begin while the loop holds its outputs."""
        if not torch.is_grad_enabled():  # else in a step, or without anything to train
            self._earlier.add_evaluation(outputs)

    # -- what the parts report --------------------------------------------------------------------

    def forward_begins(self, part: TracedPart, arguments: list[Any], binding: Binding) -> int:
        """The number of the schedule by which `part` must run."""
        self.num_forwards += 1
        self._held.see([arguments[i] for i in part.fixed_positions])
        index = self.parts.index(part)
        self._is_spoiled |= self._forgotten.free(self._calls)
        self._leave_behind()
        if not self._calls.is_open:
            self._begin_step(part, arguments, binding)
        self._mark("forward", len(self._calls.rows))
        key = self._calls.key_of(index, part)
        earlier = self._calls.opened
        # What the step is given is there in every call, and the first one reads it.
        kept = sum(call.kept_bytes for call in earlier)
        kept += self._calls.rows[0].shared_bytes if earlier else 0
        if key not in self.plans.known.numbers:
            if self._meter is None and self.plans.known.records:
                self._turns.see((key, None))  # a later one: the next may be of another kind
            else:
                self._turns.is_missing = True
        number = self.plans.number_for(key, binding, lambda: self._held.total_bytes, kept)
        part = self.parts[index]  # perhaps in small groups now
        number = part.trust.refused.get(number, number)
        kept = part.cost(number, binding).kept_bytes
        shared = self._calls.shared_bytes(part.inputs_among(arguments), self._given)
        call = PartCall(key, part, binding, number, kept, shared)
        if self._meter is not None:
            fixed = (arguments[i] for i in part.fixed_positions)
            places = [t.data_ptr() for t in fixed if isinstance(t, torch.Tensor)]
            call.trained = hash((index, *places))
        self._calls.rows.append(call)
        return number

    def others_that_fit(self, part: TracedPart, binding: Binding) -> list[int]:
        """Schedules of `part` with which the step fits the budget, beside what is resident."""
        earlier = sum(call.kept_bytes for call in self._calls.rows[:-1] if call.is_open)
        return self.plans.within(part, binding, self._held.total_bytes + earlier)

    def refuse(self, part: TracedPart, instead: int, wrong: str) -> None:
        """Run the present call by another schedule, because its own gives another step."""
        call = self._calls.rows[-1]
        call.number, call.kept_bytes = instead, part.cost(instead, call.binding).kept_bytes
        line = f"a schedule of {part.name} is not its step: {wrong}; another one runs instead"
        self.note(line)
        warnings.warn(line, ReplannedWarning, stacklevel=2)

    def refuse_ahead(self, part: TracedPart, wrong: str) -> None:
        """Say that a schedule that was made for sizes to come is not used."""
        line = f"a schedule of {part.name} for other sizes is not its step: {wrong}; it never runs"
        self.note(line)
        warnings.warn(line, ReplannedWarning, stacklevel=2)

    def see(self, model: nn.Module) -> None:
        """Count what `model` holds, in no part of the step too."""
        self._held.see([*model.parameters(), *model.buffers()])

    def forward_ends(self, part: TracedPart, outputs: list[Any], header: torch.Tensor) -> None:
        """Note that a forward has ended, whose saved tensors live as long as `header`."""
        call = self._calls.rows[-1]
        call.header = weakly(header)
        call.place = header.data_ptr()
        call.results = results_of(outputs)
        watched: dict[int, int] = {}
        if self._meter is not None:
            self._meter.results.add(len(self._calls.rows) - 1, outputs)
            unread = part.outputs.unread()
            found = [it for i, it in enumerate(call.results) if i in unread]
            watched = {it.place: it.size_bytes for it in (*found, *self._earlier.stale)}
        self._mark("after forward", len(self._calls.rows) - 1, watched)

    def backward_begins(
        self, part: TracedPart, header: torch.Tensor, given: Sequence[torch.Tensor | None]
    ) -> None:
        """The backward half of a call of `part` is about to run, with the gradients `given`."""
        number = self._calls.number_of(header)
        if number >= 0 and not self.is_rehearsing:
            call = self._calls.rows[number]
            if not any(half < 0 for half in self._calls.order):
                self._see_stale()
            for one in self._calls.rows:
                if not one.is_done:
                    one.gone = gone_among(one.results)
            if call.use is None:
                if not part.makes_zeros:  # or else they come, or are made
                    call.lacking = frozenset(i for i, it in enumerate(given) if it is None)
                if not self._sees_at_end:
                    self._sees_at_end = True
                    when_backward_ends(self._see_uses)
        self._mark("backward", number)
        if keeps_graph() and not self.is_rehearsing:
            self._tell(
                "a backward with retain_graph=True holds what its schedule would free, and its "
                "step is not measured: it may exceed the budget",
                PlainStepWarning,
            )
        if self._meter is not None:
            when_backward_ends(lambda: self._mark(OVER, -1))

    def backward_ends(
        self, header: torch.Tensor, gradients: Callable[[], list[torch.Tensor]]
    ) -> None:
        """The backward half of a call has run, and gives its inputs these gradients."""
        number = self._calls.number_of(header)
        self._mark("after backward", number)
        if number < 0:
            return
        self._calls.rows[number].is_done = True
        if self._meter is not None:
            self._end_measured(number, gradients)

    def _see_uses(self) -> None:
        """See what the loop has done with the outputs of the calls whose backwards are over.

        Until then a schedule may keep an output that the loop has dropped.
        """
        self._sees_at_end = False
        for call in self._calls.rows:
            if call.use is not None or not call.is_done:
                continue
            call.use = OutputUse(gone_among(call.results), call.lacking)
            if self._meter is None and self.plans.known.records:
                self._turns.see((call.key, call.use))
            if call.use.covers(call.part.use):
                continue
            call.part.learn_use(call.use)
            self.plans.plan_anew()
            self._tell(
                f"the loop holds more of the outputs of {call.part.name}, or of their gradients, "
                "than before: this step may have exceeded the budget, later ones are planned for "
                "it",
                ReplannedWarning,
            )

    def _see_stale(self) -> None:
        """See whether results of earlier steps are gone, as the first backward begins."""
        stays = self._earlier.stay_bytes()
        if not stays or not self.plans.known.passing_now:
            return
        peak, budget = self.peak_bytes, self.budget_bytes
        if peak is not None and budget is not None and peak + stays > budget:
            self._tell(
                "outputs of earlier steps are still there in a backward: this step may exceed the "
                "budget, later ones are planned for it",
                ReplannedWarning,
            )
        self.plans.known.passes = False
        self.plans.plan_anew()

    def may_give_early(self, part: TracedPart) -> bool:
        """Whether what the loop does with gradients fits beside the rest of this backward."""
        is_measured = self._meter is not None or self._turns.is_missing
        return not is_measured and self.plans.has_room_for_hooks(self.parts.index(part))

    def _end_measured(self, number: int, gradients: Callable[[], list[torch.Tensor]]) -> None:
        """The backward of call `number` has run in a measured step."""
        assert self._meter is not None
        self._meter.results.end(number, gradients())

    # -- steps ------------------------------------------------------------------------------------

    def _resident_bytes(
        self, part: TracedPart, arguments: list[Any], binding: Binding
    ) -> tuple[int, int]:
        """Bytes that exist before a step, the inputs of its first part excluded.

        The second number is of those that its forwards find alone: results of an earlier step.
        """
        read = bytes_by_place(part.inputs_among(arguments))
        self._made_before = sum(size for place, size in read.items() if place not in self._handed)
        self._given, self._handed = self._handed | read, {}
        others = sum(size for place, size in self._given.items() if place not in read)
        found = self._held.total_bytes + others + self._kept_by_others(read) + self._left_bytes()
        stale, few = self._stale_bytes()
        passing = stale if self.plans.known.passes else 0
        found += stale - passing + few
        if part.device == "cuda":
            device = next(t.device for t in arguments if isinstance(t, torch.Tensor) and t.is_cuda)
            requested = requested_bytes(device)
            found = max(found, requested - part.input_bytes(binding) - passing)
        return found, passing

    def _stale_bytes(self) -> tuple[int, int]:
        """Bytes of results of earlier steps that are there; or room for them, if they are few."""
        if self.is_rehearsing:
            self._earlier.stale = []
            return 0, 0
        few = int((self.budget_bytes or 0) * _FEW)
        found = self._earlier.begin_step(self._given, lambda: self._held.places, few)
        return (found, 0) if self._earlier.stale else (0, _room_for(found))

    def _kept_by_others(self, read: dict[int, int]) -> int:
        """Bytes that open steps of other models keep, as a generator's while its critic runs.

        Parameters
        ----------
        read
            Bytes of the inputs by their place: outputs of other models among them count there.
        """
        others = [it for it in list(_sessions) if it is not self]
        made = {place for other in others for place in other._calls.made()}
        both = sum(size for place, size in read.items() if place in made)
        kept = sum(call.kept_bytes for other in others for call in other._calls.opened)
        kept += sum(other._left_bytes() for other in others)
        return max(0, kept - both)

    def _begin_step(self, part: TracedPart, arguments: list[Any], binding: Binding) -> None:
        may_start, self._may_start = self._may_start, None
        num_ended = records_ended()
        close_all()
        if may_start is None:
            self._coming = bytes_by_place(part.inputs_among(arguments))
            may_start = self._end_step()
        resident = self._resident_bytes(part, arguments, binding)
        self.plans.known.made_bytes = self._held.made_bytes
        self._begin_plans(*resident)
        self._look_behind()
        known = self.plans.known
        wanted = self._turns.is_missing or known.is_longest((self.parts.index(part), 0), binding)
        wanted = wanted or self._turns.looks_at_passing(known.wants_passing)
        if wanted and may_start and self._meter is None and records_ended() == num_ended:
            self._start_measuring(torch.device(part.device))
            if self._meter is not None:
                self._meter.begins_early = False
        if self._meter is not None:
            self._behind.begin()

    def _leave_behind(self) -> None:
        """End a step that is open only because of calls that the loop holds through many steps.

        What they keep counts as resident from then on.
        """
        left = [] if self.is_rehearsing else self._calls.left_behind()
        if not left:
            return
        self._stop_measuring()
        self._left += left
        others = (call for call in self._calls.rows if not any(call is it for it in left))
        self._earlier.add(result for call in others for result in call.results)
        self._calls, self._is_spoiled = StepCalls(), True
        self._tell(
            f"what a forward keeps ({format_bytes(self._left_bytes())}) is held through many steps "
            "without its backward: it counts as resident from now on; del its outputs",
            ReplannedWarning,
        )

    def _left_bytes(self) -> int:
        """Bytes that calls keep which are held through many steps, with what they were given."""
        self._left = [call for call in self._left if call.is_open]
        return sum(call.kept_bytes + call.part.input_bytes(call.binding) for call in self._left)

    def _begin_plans(self, resident_bytes: int, passing_bytes: int) -> None:
        """Begin the step beside these bytes, and those that the code behind a step has left."""
        known = self.plans.known
        before, left = known.resident_bytes, known.left_bytes
        try:
            self.plans.begin(resident_bytes + left, passing_bytes)
        except InfeasibleBudgetError:
            if not left:
                raise
            # It may be no part of the budget, as a model that was made meanwhile.
            known.resident_bytes, known.left_bytes, self._ignores_left = before, 0, True
            self.plans.plan_anew()
            self.plans.begin(resident_bytes, passing_bytes)
            self._tell(
                f"the loop holds {format_bytes(left)} that it has made behind a step, beside which "
                "no plan is within the budget: they are not counted, and steps may exceed it by "
                "them",
                PlainStepWarning,
            )

    def _end_step(self) -> bool:
        """End the step before; whether a record may start in this one.

        Profiler ranges that are open here began under the record that ends here. As they end, they
        write to any record that runs by then. So the next record starts a step later.
        """
        may_start = self._meter is None and may_record()
        self._read_step()
        self._look_at_order()
        self._stop_measuring()
        if not self.is_rehearsing:
            self._earlier.add(result for call in self._calls.rows for result in call.results)
            self._turns.step_ends()
        self._calls, self._is_spoiled, self._coming = StepCalls(), False, None
        self._sees_at_end = False  # a backward that failed has not come to its end
        return may_start

    def _look_at_order(self) -> None:
        """Measure the next step if this one ran its halves in an order that no plan is for."""
        if self._turns.is_missing or self._is_spoiled or self._meter is not None:
            return
        calls = self._calls
        if not calls.has_backward or self.plans.is_for(calls.keys, calls.halves):
            return
        self._turns.is_missing = True
        self._tell(
            "the backwards of a step came in an order that was not seen before: that step may "
            "have exceeded the budget, and the next one is measured",
            ReplannedWarning,
        )

    def _start_measuring(self, device: torch.device) -> None:
        """Begin a record, if it is worth it and no other profiler is on."""
        may_look = self._turns.may_look(len(self.plans.known.records))
        if self.is_rehearsing or not may_look:
            return
        meter, num_ended = None, records_ended()
        if all(part.is_measured for part in self.parts):
            close_waiting()  # records of other models, whose steps have ended
            if records_ended() != num_ended:
                return  # a later step tells, which begins under none of them
            meter = outside_meter(device)
        if meter is None and is_profiling():  # a later step tells
            if not is_recording():
                self._say_unmeasured()
            elif self._turns.is_blocked():
                for other in list(_sessions):
                    other._stop_measuring()
            return
        self._turns.looks()
        if meter is not None:
            self._meter = StepMeter(meter)
            self._end_later()

    def _say_unmeasured(self) -> None:
        """Say that this step may take more than its budget, which a later step will tell."""
        self._tell(
            "the loop's code around the graphs, as its loss, is not measured under another "
            "profiler: steps may exceed the budget until one runs without it",
            PlainStepWarning,
        )

    def _tell(self, line: str, kind: type[UserWarning]) -> None:
        """Warn of `line`, and add it to the report, once."""
        if line not in self.check_note:
            self.note(line)
            warnings.warn(line, kind, stacklevel=3)

    def _mark(self, what: str, number: int, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """Note what is about to run: a half of call `number`, or the code after it."""
        if what in ("forward", "backward") and number >= 0:
            self._calls.order.append(number if what == "forward" else ~number)
        if self._meter is not None:
            self._meter.mark(what, number, watched)

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.stop()
            self._meter = None
            self._turns.is_missing = True

    def _end_later(self) -> None:
        # Not in the backward that ends the step: it runs with a copy of the thread's state, which
        # would start the record again.
        end = weakref.WeakMethod(self._end_record)
        close_later(lambda: _if_alive(end))

    def _end_record(self) -> bool:
        """End the record if no backward of its step may still come; whether there was one."""
        if self._meter is None:
            return False
        if self._calls.is_open:
            self._end_later()
            return False
        self._read_step()
        self._stop_measuring()
        return True

    def _read_step(self) -> None:
        """Learn from the record of a step whose backwards have all run."""
        meter, calls = self._meter, self._calls
        if meter is None or not calls.rows:
            return
        if not calls.has_backward:
            self._meter = None
            meter.stop()
            self._turns.misses()
            return
        stretches, self._meter = meter.stop(), None
        if self._is_spoiled:
            return
        if stretches is None:
            self._turns.is_missing = True
            return
        if meter.begins_early:
            is_resident = calls.rows[0].part.device == "cuda"
            self._front = meter.front(stretches[0], self._made_before, is_resident=is_resident)
        self._see_behind(meter, stretches)
        record = meter.record(stretches, calls, self._front, self.plans.known.passing_now)
        if record is None:
            return
        uses: dict[PlannedPart, OutputUse] = {}
        for call in calls.rows:
            if call.use is None and not call.is_done:  # no gradient came for any output
                call.use = OutputUse(call.gone, frozenset(range(len(call.part.given))))
            if call.use is not None:
                uses[call.part] = uses.get(call.part, call.use).common(call.use)
        for part, use in uses.items():
            if part.learn_use(use):
                self.plans.plan_anew()
        met = [(call.key, call.use) for call in calls.rows if call.use is not None]
        self._turns.learn(met, alone=self.plans.learn(record))

    def _see_behind(self, meter: StepMeter, stretches: list[OutsideBytes]) -> None:
        """Learn from the code behind the last backward of a measured step."""
        stretch, known = meter.behind(stretches), self.plans.known
        if stretch is None or self.budget_bytes is None:
            return
        # Where the record ends as an optimizer's step begins, nobody knows what stays.
        if self._coming is not None and not self._ignores_left:
            left = self._behind.left_bytes(meter.left_blocks, self._coming)
            known.left_bytes = max(known.left_bytes, left)
        self._behind_bytes = self._behind.peak_bytes(stretch, sum(self._given.values()))

    def _look_behind(self) -> None:
        """Say what outside of the plan takes more than the budget, once that is known."""
        budget, peak = self.budget_bytes, self._behind_bytes
        if self.peak_bytes is None or budget is None:
            return
        for line in self._optimizers.new_lines(budget):
            self._tell(line, PlainStepWarning)
        if peak <= budget or self._says_behind:
            return
        self._says_behind = True
        self._tell(
            f"with the code behind its backward a step takes about {format_bytes(peak)}, over the "
            f"budget of {format_bytes(budget)}: no schedule changes what runs there, as copies of "
            "gradients, or another forward of the model's modules (functional_call, model.forward)",
            PlainStepWarning,
        )

    def _bytes_around(self) -> int:
        """Bytes that the present step was given, and of its outputs that are there still."""
        results = (it for call in self._calls.rows for it in call.results if not it.is_gone)
        found = alive_bytes(it for it in results if it.place not in self._given)
        return sum(self._given.values()) + found

    # -- for people -------------------------------------------------------------------------------

    @property
    def numbers(self) -> dict[Key, int]:
        """The schedule number of each call; a call is a part and how often it ran before."""
        return self.plans.known.numbers

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, once a step has come; else ``None``."""
        return self.plans.known.budget_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the steps planned last; ``None`` before."""
        return self.plans.known.peak_bytes

    @property
    def plan(self) -> Plan | None:
        """The plan that was made last."""
        return self.plans.known.plan

    @property
    def store_all_bytes(self) -> int:
        """About the bytes of a step that recomputes nothing, as far as its parts are known."""
        return self.plans.known.store_all_bytes() + self._held.total_bytes

    def report(self) -> str:
        """A description of what was planned, for people."""
        if self.budget_bytes is None:
            return "no step has come yet"
        lines = [f"budget {format_bytes(self.budget_bytes)}"]
        lines.append(f"  resident       {format_bytes(max(0, self.plans.known.resident_bytes))}")
        if self.peak_bytes is not None:
            lines.append(f"  predicted peak {format_bytes(self.peak_bytes)}")
        lines += self._optimizers.report()
        lines += describe_calls(self.parts, self.numbers, self.plans.planned_for)
        lines.append(describe_checks(self.parts, self.check_note, self.num_compared))
        return "\n".join(lines)
