"""The steps of one compiled model: the parts that they run, and the memory of code between them."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..compiled.group import Groups
from ..guards.plan_variants import PlainStepWarning, ReplannedWarning
from ..measure.allocator import NO_BLOCKS, close_later, close_waiting, is_recording, records_ended
from ..measure.cuda import requested_bytes
from ..measure.storage import local, storages
from ..torch_private.graph_tasks import keeps_graph, when_backward_ends
from ..torch_private.profiler_records import is_profiling
from ..torch_private.pytrees import tree_leaves
from ..torch_private.storage_refs import StorageWeakRef, is_gone, weakly
from .drop_in_options import DropInOptions
from .held_results import HeldResults
from .held_state import HeldState, may_record
from .output_uses import OutputUse, Result, alive_bytes, gone_among, results_of
from .outside_code import OutsideBytes, OutsideMeter, outside_meter
from .part_sizes import Binding
from .step_plans import StepPlans
from .step_record import NOTHING, Key, StepRecord, last_first
from .traced_part import TracedPart

_MOST_LINES = _MOST_COLLECTIONS = 8
_MOST_WAITS = 8
"""Times that a use of the outputs is waited for which no record has met."""
_MOST_PASSING_LOOKS = 4
"""Steps that are measured again for results of the step before, as of a larger one."""
_FEW = 2**-10
"""Share of the budget up to which results of earlier steps do not count, as their losses."""
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


@dataclass
class PartCall:
    """A forward of a part in the present step, whose backward may still come.

    Attributes
    ----------
    binding
        Numbers for the part's open sizes.
    header, place
        An object that lives as long as what the forward has saved, and its place meanwhile.
    kept_bytes
        Predicted bytes that the call saves, with its outputs.
    shared_bytes
        Bytes of inputs that are outputs of earlier calls.
    trained
        A number that calls share which train the same parameters.
    results
        Its outputs, which it does not hold.
    lacking, gone
        Numbers of the gradients that the backward was not given, and of the outputs that were gone
        as it began.
    use
        What the loop had done with the outputs; ``None`` until the backward is over.
    """

    key: Key
    part: TracedPart
    binding: Binding
    number: int
    kept_bytes: int
    shared_bytes: int
    trained: int = 0
    header: StorageWeakRef | None = None
    place: int = 0
    results: tuple[Result, ...] = ()
    lacking: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    use: OutputUse | None = None
    is_done: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """The places of the outputs."""
        return tuple(result.place for result in self.results)

    def gone_bytes(self, *, read_inside: bool) -> int:
        """Bytes of the outputs that were gone as backward began, `read_inside` the part or not."""
        unread = self.part.outputs.unread()
        found = {
            result.place: result.size_bytes
            for i, result in enumerate(self.results)
            if i in self.gone and (i not in unread) == read_inside
        }
        return sum(found.values())

    @property
    def is_open(self) -> bool:
        """Whether the backward of the call may still come."""
        if self.is_done:
            return False
        return self.header is None or not is_gone(self.header)


def _bytes_by_storage(tensors: Any) -> dict[int, int]:
    return {s.data_ptr(): s.nbytes() for s in storages(tensors)}


def _if_alive(end: weakref.WeakMethod[Callable[[], bool]]) -> bool:
    """A record that waits for its end keeps no model alive."""
    ended = end()
    return ended is not None and ended()


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
        self._calls: list[PartCall] = []
        # Bytes by the address of the storage: of the inputs of the model's next forward, and of
        # what the present step was given.
        self._handed: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._earlier: list[Result] = []  # results of the steps before that may still be there
        self._stale: list[Result] = []  # those that were there when the present step began
        self._made_before = 0  # bytes of what the first part reads and the code before it has made
        # Whether a record may start in the step that has begun; None where only parts say so.
        self._may_start: bool | None = None
        self._begins_early = False
        self._front = NOTHING
        self._num_looks = self._num_passing_looks = self._num_collections = 0
        self._sees_at_end = False  # whether the running backward ends with a look at the outputs
        # Uses of the outputs with which the code between halves was measured, and how often others
        # came. After each time a record waits a step longer, so that steps in turns are all met.
        self._measured_uses: set[tuple[Key, OutputUse]] = set()
        self._num_unmeasured: Counter[tuple[Key, OutputUse]] = Counter()
        self._steps_until_record: int | None = None
        self._is_missing = True
        self._is_spoiled = False  # whether the present step ran what no later step will
        self._meter: OutsideMeter | None = None
        self._marks: list[tuple[str, int]] = []
        self._results = HeldResults()
        self._order: list[int] = []  # the halves of the present step as they run
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
        resident_bytes, order = self.plans.resident_bytes, self._order
        self._calls, self._order = list(calls), list(order)
        self._stop_measuring()
        try:
            yield
        finally:
            self.is_rehearsing = before
            self.plans.leave_rehearsal(resident_bytes)
            # The loop's calls: those of the block may live on, in a cycle.
            self._calls, self._order = calls, order

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
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return not (self.options.compile or distributed)

    def replace(self, part: TracedPart, by: TracedPart, why: str) -> None:
        """Forget the steps that ran `part`: later ones run `by` in its place, and `why`."""
        self.plans.forget(self.parts.index(part))
        self._is_spoiled = True
        self.note(f"{by.name} runs in the place of {part.name}: {why}")

    def step_begins(self, inputs: Any) -> None:
        """A forward of the whole model is about to run; the first part will say more."""
        self._handed = _bytes_by_storage(inputs)
        if self.parts and not any(call.is_open for call in self._calls):
            self._may_start = self._end_step()
            if self._may_start and self._is_missing:
                self._start_measuring(torch.device(self.parts[0].device))

    def evaluation_begins(self) -> None:
        """A forward of the whole model is about to run as it is."""

    def evaluation_ends(self, outputs: Any) -> None:
        """Such a forward has run, and a later step may begin while the loop holds its outputs."""
        if torch.is_grad_enabled():
            return  # in a step, or without anything to train
        self._earlier = [it for it in self._earlier if not it.is_gone]
        found = (local(t) for t in tree_leaves(outputs) if isinstance(t, torch.Tensor))
        self._earlier += results_of(t for t in found if t.layout is torch.strided)

    # -- what the parts report --------------------------------------------------------------------

    def forward_begins(self, part: TracedPart, arguments: list[Any], binding: Binding) -> int:
        """The number of the schedule by which `part` must run."""
        self.num_forwards += 1
        self._held.see(arguments[i] for i in part.fixed_positions)
        index = self.parts.index(part)
        self._free_forgotten()
        if not any(call.is_open for call in self._calls):
            self._begin_step(part, arguments, binding)
        self._mark("forward", len(self._calls))
        key = (index, sum(call.part is part and call.is_open for call in self._calls))
        earlier = [call for call in self._calls if call.is_open]
        # What the step is given is there in every call, and the first one reads it.
        kept = sum(call.kept_bytes for call in earlier)
        kept += self._calls[0].shared_bytes if earlier else 0
        if key not in self.plans.numbers:
            self._is_missing = True
        number = self.plans.number_for(key, binding, self._held.total_bytes, kept)
        number = part.trust.refused.get(number, number)
        kept = part.cost(number, binding).kept_bytes
        call = PartCall(key, part, binding, number, kept, self._shared(arguments))
        if self._meter is not None:
            fixed = (arguments[i] for i in part.fixed_positions)
            places = [t.data_ptr() for t in fixed if isinstance(t, torch.Tensor)]
            call.trained = hash((index, *places))
        self._calls.append(call)
        return number

    def others_that_fit(self, part: TracedPart, binding: Binding) -> list[int]:
        """Schedules of `part` with which the step fits the budget, beside what is resident."""
        earlier = sum(call.kept_bytes for call in self._calls[:-1] if call.is_open)
        return self.plans.within(part, binding, self._held.total_bytes + earlier)

    def refuse(self, part: TracedPart, instead: int, wrong: str) -> None:
        """Run the present call by another schedule, because its own gives another step."""
        call = self._calls[-1]
        call.number, call.kept_bytes = instead, part.cost(instead, call.binding).kept_bytes
        line = f"a schedule of {part.name} is not its step: {wrong}; another one runs instead"
        self.note(line)
        warnings.warn(line, ReplannedWarning, stacklevel=2)

    def see(self, model: nn.Module) -> None:
        """Count what `model` holds, in no part of the step too."""
        self._held.see([*model.parameters(), *model.buffers()])

    def forward_ends(self, part: TracedPart, outputs: list[Any], header: torch.Tensor) -> None:
        """Note that a forward has ended, whose saved tensors live as long as `header`."""
        call = self._calls[-1]
        call.header = weakly(header)
        call.place = header.data_ptr()
        call.results = results_of(outputs)
        watched: dict[int, int] = {}
        if self._meter is not None:
            self._results.add(len(self._calls) - 1, outputs)
            unread = part.outputs.unread()
            found = [it for i, it in enumerate(call.results) if i in unread]
            watched = {it.place: it.size_bytes for it in (*found, *self._stale)}
        self._mark("after forward", len(self._calls) - 1, watched)

    def backward_begins(
        self, part: TracedPart, header: torch.Tensor, given: Sequence[torch.Tensor | None]
    ) -> None:
        """The backward half of a call of `part` is about to run, with the gradients `given`."""
        number = self._number_of(header)
        if number >= 0 and not self.is_rehearsing:
            call = self._calls[number]
            if not any(half < 0 for half in self._order):
                self._see_stale()
            if call.use is None:
                if part.layouts is not None:  # or else zeros come, or are made
                    call.lacking = frozenset(i for i, it in enumerate(given) if it is None)
                call.gone = gone_among(call.results)
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
            when_backward_ends(lambda: self._mark("backward is over", -1))

    def backward_ends(
        self, header: torch.Tensor, gradients: Callable[[], list[torch.Tensor]]
    ) -> None:
        """The backward half of a call has run, and gives its inputs these gradients."""
        number = self._number_of(header)
        self._mark("after backward", number)
        if number < 0:
            return
        self._calls[number].is_done = True
        if self._meter is not None:
            self._end_measured(number, gradients)

    def _see_uses(self) -> None:
        """See what the loop has done with the outputs of the calls whose backwards are over.

        Until then a schedule may keep an output that the loop has dropped.
        """
        self._sees_at_end = False
        for call in self._calls:
            if call.use is not None or not call.is_done:
                continue
            call.use = OutputUse(gone_among(call.results), call.lacking)
            self._see_unmeasured((call.key, call.use))
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

    def _see_unmeasured(self, used: tuple[Key, OutputUse]) -> None:
        """Measure a later step if this one was the first to use outputs so: its code is another."""
        if self._meter is not None or not self.plans.records or used in self._measured_uses:
            return
        if self._steps_until_record is None and self._num_unmeasured[used] < _MOST_WAITS:
            self._num_unmeasured[used] += 1
            self._steps_until_record = self._num_unmeasured[used]

    def _see_stale(self) -> None:
        """See whether results of earlier steps are gone, as the first backward begins."""
        stays = alive_bytes(self._stale)
        if not stays or not self.plans.passing_now:
            return
        peak, budget = self.plans.peak_bytes, self.plans.budget_bytes
        if peak is not None and budget is not None and peak + stays > budget:
            self._tell(
                "outputs of earlier steps are still there in a backward: this step may exceed the "
                "budget, later ones are planned for it",
                ReplannedWarning,
            )
        self.plans.passes = False
        self.plans.plan_anew()

    def may_give_early(self, part: TracedPart) -> bool:
        """Whether what the loop does with gradients fits beside the rest of this backward."""
        is_measured = self._meter is not None or self._is_missing
        return not is_measured and self.plans.has_room_for_hooks(self.parts.index(part))

    def _end_measured(self, number: int, gradients: Callable[[], list[torch.Tensor]]) -> None:
        """The backward of call `number` has run in a measured step."""
        self._results.end(number, gradients())

    def _number_of(self, header: torch.Tensor) -> int:
        """The number of the call that has saved `header`; -1 if it is of no call of this step.

        Calls that are done may have had theirs in the same place.
        """
        place = header.data_ptr()
        found = [i for i, call in enumerate(self._calls) if call.place == place]
        return next((i for i in reversed(found) if not self._calls[i].is_done), -1)

    def _free_forgotten(self) -> None:
        """Run the cycle collector if an earlier call stays open although a later one is done.

        The outputs of the earlier call may be in a reference cycle. No step begins while it is
        open.
        """
        opened = [i for i, call in enumerate(self._calls) if call.is_open]
        done = any(call.is_done for call in self._calls[opened[0] :]) if opened else False
        if done and self._num_collections < _MOST_COLLECTIONS:
            self._num_collections += 1
            gc.collect()

    def _shared(self, arguments: list[Any]) -> int:
        made = {place for call in self._calls if call.is_open for place in call.outputs}
        found = _bytes_by_storage(arguments)
        return sum(size for place, size in found.items() if place in made or place in self._given)

    # -- steps ------------------------------------------------------------------------------------

    def _resident_bytes(
        self, part: TracedPart, arguments: list[Any], binding: Binding
    ) -> tuple[int, int]:
        """Bytes that exist before a step, the inputs of its first part excluded.

        The second number is of those that its forwards find alone: results of an earlier step.
        """
        fixed = set(part.fixed_positions)
        read = _bytes_by_storage([t for i, t in enumerate(arguments) if i not in fixed])
        self._made_before = sum(size for place, size in read.items() if place not in self._handed)
        self._given, self._handed = self._handed | read, {}
        others = sum(size for place, size in self._given.items() if place not in read)
        found = self._held.total_bytes + others + self._kept_by_others(read)
        stale = self._stale_bytes(part.device)
        passing = stale if self.plans.passes else 0
        found += stale - passing
        if part.device == "cuda":
            device = next(t.device for t in arguments if isinstance(t, torch.Tensor) and t.is_cuda)
            requested = requested_bytes(device)
            found = max(found, requested - part.input_bytes(binding) - passing)
        return found, passing

    def _stale_bytes(self, device: str) -> int:
        """Bytes of results of earlier steps that are there, but for a few."""
        if self.is_rehearsing:
            self._stale = []
            return 0
        self._earlier = [it for it in self._earlier if not it.is_gone]
        self._stale = [it for it in self._earlier if it.place not in self._given]
        if self._stale:  # outputs of an evaluation may be parameters, buffers, or views of them
            fixed = self._held.places
            self._stale = [it for it in self._stale if it.place not in fixed]
        found = alive_bytes(self._stale)
        if found <= (self.plans.budget_bytes or 0) * _FEW:
            self._stale = []
            return 0
        return found

    def _kept_by_others(self, read: dict[int, int]) -> int:
        """Bytes that open steps of other models keep, as a generator's while its critic runs.

        Parameters
        ----------
        read
            Bytes of the inputs by their place: outputs of other models among them count there.
        """
        calls = [call for it in list(_sessions) if it is not self for call in it._calls]
        calls = [call for call in calls if call.is_open]
        made = {place for call in calls for place in call.outputs}
        both = sum(size for place, size in read.items() if place in made)
        return max(0, sum(call.kept_bytes for call in calls) - both)

    def _begin_step(self, part: TracedPart, arguments: list[Any], binding: Binding) -> None:
        may_start, self._may_start = self._may_start, None
        num_ended = records_ended()
        if may_start is None:
            may_start = self._end_step()
        self.plans.begin(*self._resident_bytes(part, arguments, binding))
        wanted = self._is_missing or self.plans.is_longest((self.parts.index(part), 0), binding)
        if not wanted and self._num_passing_looks < _MOST_PASSING_LOOKS:
            wanted = self.plans.wants_passing
            self._num_passing_looks += wanted
        if wanted and may_start and self._meter is None and records_ended() == num_ended:
            self._start_measuring(torch.device(part.device))
            self._begins_early = False

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
            self._earlier += [result for call in self._calls for result in call.results]
            if self._steps_until_record is not None:
                self._steps_until_record -= 1
                if self._steps_until_record == 0:
                    self._steps_until_record, self._is_missing = None, True
        self._calls, self._order, self._is_spoiled = [], [], False
        self._sees_at_end = False  # a backward that failed has not come to its end
        return may_start

    def _look_at_order(self) -> None:
        """Measure the next step if this one ran its halves in an order that no plan is for."""
        calls = self._calls
        if self._is_missing or self._is_spoiled or self._meter is not None:
            return
        if not all(call.is_done for call in calls):
            return
        if self.plans.is_for(tuple(call.key for call in calls), tuple(self._order)):
            return
        self._is_missing = True
        self._tell(
            "the backwards of a step came in an order that was not seen before: that step may "
            "have exceeded the budget, and the next one is measured",
            ReplannedWarning,
        )

    def _start_measuring(self, device: torch.device) -> None:
        """Begin a record, if it is worth it and no other profiler is on."""
        may_look = len(self.plans.records) < _MOST_LINES and self._num_looks < 4 * _MOST_LINES
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
            return
        self._is_missing = False
        self._num_looks += 1
        if meter is not None:
            meter.start()
            self._end_later()
            self._meter, self._marks, self._begins_early = meter, [], True
            self._results = HeldResults()

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
            self._order.append(number if what == "forward" else ~number)
        if self._meter is not None:
            self._meter.mark(watched)
            self._marks.append((what, number))

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.stop()
            self._meter = None
            self._is_missing = True

    def _end_later(self) -> None:
        # Not in the backward that ends the step: it runs with a copy of the thread's state, which
        # would start the record again.
        end = weakref.WeakMethod(self._end_record)
        close_later(lambda: _if_alive(end))

    def _end_record(self) -> bool:
        """End the record if no backward of its step may still come; whether there was one."""
        if self._meter is None:
            return False
        if any(call.is_open for call in self._calls):
            self._end_later()
            return False
        self._read_step()
        self._stop_measuring()
        return True

    def _read_step(self) -> None:
        if self._meter is None or not self._calls or any(not c.is_done for c in self._calls):
            return
        stretches, self._meter = self._meter.stop(), None
        if self._is_spoiled:
            return
        after: dict[str, dict[int, OutsideBytes]] = {"after forward": {}, "after backward": {}}
        if len(stretches) != len(self._marks) + 1:  # backward did not run exactly once
            self._is_missing = True
            return
        following = [*self._marks[1:], ("end", -1)]
        rows = zip(self._marks, following, stretches[1:], strict=True)
        for (what, number), (then, next_number), stretch in rows:
            if what in after:
                turns = what == "after forward" and (then, next_number) == ("backward", number)
                after[what][number] = self._net(number, stretch) if turns else stretch
        if self._begins_early:
            # On a CUDA device what is left there is resident, and what the first part reads is its
            # input anyhow.
            is_resident = self._calls[0].part.device == "cuda"
            left = 0 if is_resident else max(0, stretches[0].left - self._made_before)
            self._front = OutsideBytes(stretches[0].most, left)
        every = range(len(self._calls))
        if any(sorted(rows) != list(every) for rows in after.values()):
            return
        record = StepRecord(
            tuple(call.key for call in self._calls),
            tuple(call.binding for call in self._calls),
            tuple(call.shared_bytes for call in self._calls),
            tuple(after["after forward"][i] for i in every),
            tuple(after["after backward"][i] for i in every),
            self._front,
            tuple(self._order),
            tuple(call.trained for call in self._calls),
            self._results.held_bytes(len(self._calls)),
            self.plans.passing_now if tuple(self._order) == last_first(len(self._calls)) else 0,
        )
        uses: dict[TracedPart, OutputUse] = {}
        for call in self._calls:
            if call.use is not None:
                uses[call.part] = uses.get(call.part, call.use).common(call.use)
        for part, use in uses.items():
            if part.learn_use(use):
                self.plans.plan_anew()
        if self.plans.learn(record):
            self._measured_uses.clear()
        self._measured_uses |= {(call.key, call.use) for call in self._calls if call.use}

    def _net(self, number: int, stretch: OutsideBytes) -> OutsideBytes:
        """The bytes of the code between the halves of a call, beyond those of its outputs.

        Outputs that the code drops count as there throughout in the plan, and so do results of the
        step before. What the code takes is less by the bytes of those that are gone by then.
        """
        call, passing = self._calls[number], self.plans.passing_now
        gone, also_gone = (call.gone_bytes(read_inside=inside) for inside in (False, True))
        if call.part.device == "cuda":  # another schedule may keep what ops of the part read
            most = stretch.net_most + passing + also_gone
            left = stretch.net_left + passing + also_gone + gone
        else:
            # The record tells the release of outputs, which it has seen come, and perhaps that of
            # some of the results of the step before.
            told = min(passing, max(0, stretch.released - gone))
            most = max(passing, stretch.net_most + told)
            left = stretch.net_left + stretch.released
        return OutsideBytes(most, max(0, left), stretch.level, stretch.top)

    # -- for people -------------------------------------------------------------------------------

    @property
    def numbers(self) -> dict[Key, int]:
        """The schedule number of each call; a call is a part and how often it ran before."""
        return self.plans.numbers

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, once a step has come; else ``None``."""
        return self.plans.budget_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of the steps planned last; ``None`` before."""
        return self.plans.peak_bytes

    @property
    def plan(self) -> Plan | None:
        """The plan that was made last."""
        return self.plans.plan

    @property
    def store_all_bytes(self) -> int:
        """About the bytes of a step that recomputes nothing, as far as its parts are known."""
        return self.plans.store_all_bytes() + self._held.total_bytes

    def report(self) -> str:
        """A description of what was planned, for people."""
        if self.budget_bytes is None:
            return "no step has come yet"
        counted = Counter(key[0] for key in self.numbers)
        lines = [f"budget {format_bytes(self.budget_bytes)}"]
        lines.append(f"  resident       {format_bytes(max(0, self.plans.resident_bytes))}")
        if self.peak_bytes is not None:
            lines.append(f"  predicted peak {format_bytes(self.peak_bytes)}")
        for key, number in self.numbers.items():
            part, binding = self.parts[key[0]], self.plans.planned_for(key)
            cost = part.cost(number, binding)
            plain = sum(op.time_s for op in part.graph.ops)
            extra = f"{cost.time_s / plain - 1:+.2%}" if plain else ""
            place = f", call {key[1] + 1} of {counted[key[0]]}" if counted[key[0]] > 1 else ""
            lines.append(
                f"  {part.name}{place}: keeps {format_bytes(cost.kept_bytes)}, time {extra}"
                + part.sizes.in_words(binding)
            )
        compared = sum(part.trust.num_compared for part in self.parts)
        later = f"; then {compared} times a new schedule with another" if compared else ""
        if self.num_compared:
            later += f"; {self.num_compared} times a step of the loop with the plain one"
        lines.append(f"  check          {self.check_note}{later}")
        return "\n".join(lines)
