"""The steps of a model whose parts communicate nothing, planned within one budget."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from schedsim.errors import InfeasibleBudgetError, SchedsimError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning, ReplannedWarning, RoundingWarning
from ..measure.allocator import close_waiting, records_ended
from ..measure.storage import bytes_by_place
from ..torch_private.graph_tasks import in_backward, keeps_graph, when_backward_ends
from .beside.allocator_room import AllocatorRoom
from .beside.behind_backward import BehindBackward
from .beside.code_between import CodeBetween
from .beside.evaluations import Evaluations
from .beside.held_in_front import HeldInFront
from .beside.held_state import HeldState, may_record
from .beside.optimizer_steps import close_all
from .beside.resident_bytes import few_bytes_of
from .call_report import describe_calls, describe_checks
from .checks.added_gradients import AddedGradients, Trained
from .drop_in_options import DropInOptions
from .parts.output_uses import OutputUse, given_watched, gone_among, results_of
from .parts.part_sizes import Binding
from .parts.planned_part import PlannedPart
from .parts.traced_part import TracedPart
from .plans.loop_round import THE_ROUND
from .plans.resident_by_kind import Before
from .plans.step_plans import StepPlans
from .plans.unmeasured_steps import record_without_measurements
from .records.step_calls import PartCall, StepCalls
from .records.step_meter import OVER
from .records.step_record import Key, StepKind
from .records.step_recorder import StepReading
from .session import Session

_MOST_UNLEARNT = 4
"""Records that are left out because optimizers have made states in them."""


class LocalSession(Session):
    """The state that the parts of such steps share.

    The first whole step runs frugally, and the code between its parts is measured; from the next
    step on, the budget is divided among the parts by these measurements.

    Attributes
    ----------
    plans : StepPlans
        Chooses the schedules by which parts run.
    """

    def __init__(self, options: DropInOptions) -> None:
        super().__init__(options, HeldState(options))
        # Ops are measured by the same profiler that measures the code between parts.
        self._recorder.sets_apart = True
        self.plans = StepPlans(options, self.parts, self._recorder.stop)
        self.plans.beside_bytes = self._least_beside
        self.plans.has_others = self._has_others
        THE_ROUND.joins(self._resident.member.number, self.plans)
        self._resident.member.least_bytes = self.plans.least_bytes
        self._resident.member.budget_bytes = self._fixed_budget
        self.plans.known.uncounted_bytes = self._resident.member.most_uncounted_bytes
        self.plans.known.adam_bytes = self._resident.member.adam_bytes
        self.plans.known.optimizer_bytes = self._optimizer_bytes
        self.plans.known.gradient_bytes = self._held.coming_gradient_bytes
        self.plans.known.late_gradient_bytes = self._held.late_gradient_bytes
        self.plans.known.is_recorded = lambda: self._recorder.is_on
        self._behind = BehindBackward(self._held)
        self._room = AllocatorRoom(self.plans, self._tell)
        self._evaluations = Evaluations()
        self._in_front = HeldInFront(options.extra_bytes)
        self._between = CodeBetween()
        self._tells_uncounted = False
        self._added = AddedGradients(lambda line: self._tell(line, RoundingWarning))
        # What the step is given that begins, where one does; by its addresses.
        self._coming: dict[int, int] | None = None
        # Whether a record may start in the step that has begun; None where only parts say so.
        self._may_start: bool | None = None
        self._last_first: int | None = None  # the part with which the step before began
        self._awaits_others: bool | None = None  # as the first step told
        self._is_gauging = False  # whether a step of a rehearsal is measured
        self._sees_at_end = False  # whether the running backward ends with a look at the outputs
        self._has_traced = False  # whether graphs have come since a step began
        self._bytes_at_start = 0  # beside the measured step, as it began
        self._unseen_at_start = 0  # of them, results of earlier steps that go before a backward
        self._states_at_start = 0  # of optimizers that step within backwards
        self._num_unlearnt = 0  # records of steps in which such states were made
        self._follows = False  # whether another step of the loop has run before it
        self._first_peak = 0  # of a step that no plan was made for, until the next one begins
        self._front_at_start = 0  # held in front of the measured step, as far as it was known
        self._front_peak = 0  # of its forward, while all was there that the step before has left
        self._most_put_off = 0  # bytes of steps whose refusal was put off
        # What replaces others, and has not run yet, with these.
        self._replacing: list[tuple[TracedPart, TracedPart]] = []

    @property
    def is_compared(self) -> bool:
        """Whether whoever compares steps with the plain ones has compared one with these parts."""
        return self.plans.small.is_compared

    def note_compared(self) -> None:
        """A step by these parts was compared with the plain one."""
        self.plans.small.is_compared = True

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a forward of the whole model, at whose end all of its graphs are known."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.plans.refusals.tell(self._step.calls)  # which names a budget that works
            self.plans.tell_doubt(self._step.calls)
            if self.plans.is_lifted:
                THE_ROUND.end()
            raise
        self._tell_refusals(more_may_come=True)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Mark the block as no step of the loop; it may come in the middle of a step."""
        resident = self.plans.known.resident
        before = resident.saved()
        self._room.looks.leaves()
        with super().rehearsing():
            try:
                yield
            finally:
                resident.restore(before)  # there was a second copy of the step's inputs

    def refused_again(
        self, error: InfeasibleBudgetError, step: Callable[[], None]
    ) -> InfeasibleBudgetError:
        """The refusal of a first forward, by what a `step` with a made-up loss tells besides.

        That is the code between its graphs, which no part of the budget is planned for yet.
        """
        refusals = self.plans.refusals
        if not refusals.is_of_several:
            return error
        self._step.calls, self._is_gauging = StepCalls(), True
        self._recorder.turns.is_missing = True
        try:
            with refusals.lifted():
                step()
                close_all()
                self._end_step()
        except torch.OutOfMemoryError:
            return error
        finally:
            self._is_gauging = False
        known = self.plans.known
        records, known.records = known.records, []
        return refusals.refusal(records[-1]) if records else error

    def add(self, part: TracedPart) -> None:
        """Add `part` to the parts that steps may run."""
        super().add(part)
        self._has_traced = True

    def replace(self, part: TracedPart, by: TracedPart, why: str) -> None:
        """Forget the steps that ran `part`: later ones run `by` in its place, and `why`."""
        self.plans.replace(self.parts.index(part), self.parts.index(by))
        self._replacing.append((by, part))
        super().replace(part, by, why)

    def step_begins(self, inputs: Any) -> None:
        """A forward of the whole model is about to run; the first part will say more."""
        self.awaits_call &= self.is_rehearsing
        handed = self._resident.hand(inputs)
        self._leave_behind()
        self._coming = handed
        was_recording = close_all()
        if self.parts and not self._step.calls.is_open:
            self._may_start = self._end_step() and not was_recording
            self._look_beside(lambda: handed)
            if self._may_start and self._recorder.turns.is_missing:
                self._start_measuring(torch.device(self.parts[0].device))

    def measuring_evaluation(self, inputs: Any) -> AbstractContextManager[None]:
        """Around a forward of the whole model that runs as it is, on `inputs`."""
        if self._recorder.is_on or self.is_rehearsing or not self.parts:
            return nullcontext()
        device = torch.device(self.parts[0].device)
        given = sum(bytes_by_place(inputs).values())
        kept = sum(call.kept_bytes for call in self._step.calls.opened)
        resident = self._held.total_bytes + self._held.in_front_bytes + given + kept
        return self._evaluations.measured(device, resident, given)

    # -- what the parts report --------------------------------------------------------------------

    def forward_begins(self, part: TracedPart, arguments: list[Any], binding: Binding) -> int:
        """The number of the schedule by which `part` must run."""
        self.num_forwards += 1
        self._see_failed_backward()
        self._held.see([arguments[i] for i in part.fixed_positions])
        index = self.parts.index(part)
        self._step.is_spoiled |= self._forgotten.free(self._step.calls)
        self._leave_behind()
        if not self._step.calls.is_open:
            self._begin_step(part, arguments, binding)
        self._resident.around.reads(part.inputs_among(arguments))
        self._recorder.half_begins(len(self._step.calls.rows), part.inputs_among(arguments))
        self._mark("forward", len(self._step.calls.rows))
        key = self._step.calls.key_of(index, part)
        earlier = self._step.calls.opened
        # What the step is given is there in every call, and the first one reads it.
        kept = sum(call.kept_bytes for call in earlier)
        kept += self._step.calls.rows[0].shared_bytes if earlier else 0
        if key not in self.plans.known.numbers and not self.plans.knows_lifted(key):
            if not self._recorder.is_on and self.plans.known.records:
                # A later one: the next may be of another kind.
                self._recorder.turns.see((key, None))
            else:
                self._recorder.turns.is_missing = True
        if self.is_rehearsing and key[1] and not binding:
            kept = 0  # calls of a rehearsal are those of no step of the loop

        def chosen() -> int:
            return self.plans.number_for(key, binding, lambda: self._held.total_bytes, kept)

        try:
            number = self._room.beside(chosen)
        except InfeasibleBudgetError as error:
            self._put_off(error)
            number = chosen()
        if not self.is_rehearsing:
            number = self._beside_later(number, key, binding, kept)
        part = self.parts[index]  # perhaps in small groups now
        number = part.trust.refused.get(number, number)
        kept = part.cost(number, binding).kept_bytes
        shared = self._step.calls.shared_bytes(part.inputs_among(arguments), self._step.given)
        call = PartCall(key, part, binding, number, kept, shared)
        if self._step.calls.is_open and self._step.thread != threading.get_ident():
            self._say_threads()
        if self._recorder.is_on or key not in self.plans.known.numbers:
            fixed = (arguments[i] for i in part.fixed_positions)
            places = [t.data_ptr() for t in fixed if isinstance(t, torch.Tensor)]
            call.trained = hash((index, *places))
        if earlier or part.sums or self.cast is not None:
            call.parameters = Trained.by(part, arguments, self.cast)
        self._step.calls.rows.append(call)
        return number

    def _beside_later(self, number: int, key: Key, binding: Binding, kept: int) -> int:
        """A schedule for a call where the step is of a kind that was not measured.

        Parameters
        ----------
        number
            The schedule by which it runs in those that were.
        kept
            Bytes that earlier calls keep.
        """
        keys, unmeasured = (*self._step.calls.keys, key), self.plans.unmeasured
        if key in self.plans.known.numbers and unmeasured.may_go_on(keys):
            return self.plans.least_for(key, binding)
        if self._step.calls.opened and unmeasured.is_new(keys):
            return self.plans.beside_calls(number, key, binding, kept)
        return number

    def others_that_fit(self, part: TracedPart, binding: Binding) -> list[int]:
        """Schedules of `part` with which the step fits the budget, beside what is resident."""
        return self.plans.within(part, binding, self._beside_call())

    def room_for(self, part: TracedPart, binding: Binding) -> float:
        """Bytes that the present call may take beside what is resident, as far as it is known."""
        if self.budget_bytes is None:
            return math.inf
        return self.budget_bytes - self._beside_call()

    def _beside_call(self) -> int:
        """Bytes beside the present call: what is resident, and what earlier calls keep.

        And results of the step before, which are there in a comparison's backward, too. Its inputs
        count with the call itself.
        """
        now = self.plans.known.resident.now
        resident = max(self._held.total_bytes, now.resident_bytes) + now.passing_bytes
        *others, present = self._step.calls.rows
        earlier = [call for call in others if call.is_open]
        if not earlier:
            return resident
        given = self._step.calls.rows[0].shared_bytes
        kept = given + sum(call.kept_bytes for call in earlier)
        return resident + kept - present.shared_bytes

    def _watched(self, part: TracedPart) -> dict[int, int]:
        """Bytes, by address, of what the code behind a forward of `part` may release."""
        if not self._recorder.is_on:
            return {}
        unread = part.outputs.unread()
        results = self._step.calls.rows[-1].results
        found = [it for i, it in enumerate(results) if i in unread]
        return {it.place: it.size_bytes for it in (*found, *self._resident.earlier.stale)}

    def backward_begins(
        self, part: TracedPart, header: torch.Tensor, given: Sequence[torch.Tensor | None]
    ) -> None:
        """The backward half of a call of `part` is about to run, with the gradients `given`."""
        self._tell_refusals()
        if not self.plans.is_lifted:
            self.plans.tell_doubt(self._step.calls)
        number = self._step.calls.number_of(header)
        if number >= 0 and not self.is_rehearsing:
            call = self._step.calls.rows[number]
            if call.parameters is not None:
                self._added.gives(part, call.parameters)
            if not any(half < 0 for half in self._step.calls.order):
                self._see_stale()
                self._see_between()
            for one in self._step.calls.rows:
                if not one.is_done:
                    one.gone = gone_among(one.results)
            if call.use is None:
                call.given = given_watched(given)
                if not part.makes_zeros:  # or else they come, or are made
                    call.lacking = frozenset(i for i, it in enumerate(given) if it is None)
                if not self._sees_at_end:
                    self._sees_at_end = True
                    when_backward_ends(self._see_uses)
        if number >= 0:
            self._recorder.half_begins(~number, given)
        self._mark("backward", number)
        if keeps_graph() and not self.is_rehearsing:
            self._tell(
                "a backward with retain_graph=True holds what its schedule would free, and its "
                "step is not measured: it may exceed the budget",
                PlainStepWarning,
            )
        if self._recorder.is_on:
            when_backward_ends(lambda: self._mark(OVER, -1))

    def see_written(self, part: TracedPart, number: int, written: frozenset[int]) -> None:
        """Plan for what code behind a part writes before its backward, and for nothing else.

        Raises
        ------
        SchedsimError
            This backward reads it again.
        """
        if self.is_rehearsing:
            return
        if part.buffers.learn(written):
            self.plans.plan_anew()
        again = part.reads_again(number, written)
        if not again:
            return
        line = (
            f"code behind {part.name} writes {again[0]} before the backward, whose half reads it "
            "by this schedule: what follows from it must be kept"
        )
        calls = self._step.calls
        if self.plans.known.records or not calls.rows:
            raise SchedsimError(line, hint="later steps keep it")
        error = self.plans.refusals.refusal(record_without_measurements(calls))
        error.message = f"{line}; {error.message}"
        error.args = (error.message,)
        raise error

    def note_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """A backward half gives these `gradients` to the arguments of its part."""
        self._added.gave(gradients)

    def backward_ends(
        self, header: torch.Tensor, gradients: Callable[[], list[torch.Tensor]]
    ) -> None:
        """The backward half of a call has run, and gives its inputs these gradients."""
        super().backward_ends(header, gradients)
        if not self.is_rehearsing:
            THE_ROUND.trains(self._resident.member.number)
        self._room.looks.sees()
        self._in_front.backward_ends()

    def _see_uses(self) -> None:
        """See what the loop has done with the outputs of the calls whose backwards are over.

        Until then a schedule may keep an output that the loop has dropped.
        """
        self._sees_at_end, more = False, []
        for call in self._step.calls.rows:
            if call.use is not None or not call.is_done:
                continue
            kept = frozenset(i for i, it in call.given if not it.is_gone)
            call.use = OutputUse(gone_among(call.results), call.lacking, kept)
            if not self._recorder.is_on and self.plans.known.records:
                self._recorder.turns.see((call.key, call.use))
            if call.use.covers(call.part.use):
                continue
            call.part.learn_use(call.use)
            more.append(call.part.name)
        if more:
            may_exceed = self.plans.may_exceed(self._step.calls)
            self.plans.plan_anew()
            for name in more if may_exceed else ():
                self._tell(
                    f"the loop holds more of the outputs of {name}, or of their gradients, than "
                    "before: this step may have exceeded the budget, later ones are planned for it",
                    ReplannedWarning,
                )

    def _see_failed_backward(self) -> None:
        """Say where a backward has not come to its end, as where a hook of the loop's raised."""
        if self._sees_at_end and not in_backward():
            self._sees_at_end = False
            self._tell(
                "a backward has raised, and left gradients of other parameters than the plain step "
                "leaves then: optimizer.zero_grad() after such an error takes both away",
                PlainStepWarning,
            )

    def _see_stale(self) -> None:
        """See whether results of earlier steps are gone, as the first backward begins."""
        stays = self._resident.earlier.stay_bytes()
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

    def _see_between(self) -> None:
        """Say where the code between the forward and this backward may exceed the budget.

        As a call of the plain model in this step alone. Not among several models, whose steps lie
        between the halves of each other's.
        """
        peak, budget = self.peak_bytes, self.budget_bytes
        if self.parts[0].device != "cpu" or self._has_others():
            return
        calls, is_measured = self._step.calls, self._recorder.is_on
        found = self._between.look(tuple(calls.keys), is_measured=is_measured)
        if found is None or peak is None or budget is None:
            return
        now, known = found
        kept = sum(call.kept_bytes for call in calls.opened) + calls.rows[0].shared_bytes
        gradients = self._held.coming_gradient_bytes()  # that code's come first
        at_loss = self._held.present_bytes + kept + now.all_bytes + gradients
        over = max(at_loss, peak + now.front_bytes - known.front_bytes) - budget
        if over <= 0:
            return
        self._recorder.turns.is_missing = True
        self._tell(
            f"code between forward and backward, as a call of the plain model, takes about "
            f"{format_bytes(now.all_bytes - known.all_bytes)} more in this step than in those that "
            f"were measured: it may exceed the budget by about {format_bytes(over)}, and the next "
            "one is measured",
            PlainStepWarning,
        )

    def may_give_early(self, part: TracedPart) -> bool:
        """Whether what the loop does with gradients fits beside the rest of this backward."""
        is_measured = self._recorder.is_on or self._recorder.turns.is_missing
        return not is_measured and self.plans.has_room_for_hooks(self.parts.index(part))

    # -- steps ------------------------------------------------------------------------------------

    def _begin_step(self, part: TracedPart, arguments: list[Any], binding: Binding) -> None:
        may_start, self._may_start = self._may_start, None
        if self._has_traced:
            # Dynamo leaves cycles, with tensors of the code that it has run between graphs.
            self._has_traced = False
            gc.collect()
        num_ended, member = records_ended(), self._resident.member
        self._between.step_begins()
        self._step.thread = threading.get_ident()
        close_all()
        self._tell_refusals()
        if may_start is None:
            self._coming = bytes_by_place(part.inputs_among(arguments))
            may_start = self._end_step()
            self._look_beside(lambda: bytes_by_place(arguments))
        before = self._resident.before(
            part,
            arguments,
            binding,
            None if self.is_rehearsing else self.budget_bytes or 0,
            results_pass=self.plans.known.passes,
        )
        self.plans.known.made_bytes = self._held.made_bytes
        self.plans.known.others_bytes = self._resident.others_bytes
        self.plans.known.others_hold_bytes = member.lasting_beside() + member.gradients_beside()
        self.plans.known.growing_bytes = self._held.growing_bytes
        # Plans may put another part in its place.
        known, turns, key = self.plans.known, self._recorder.turns, (self.parts.index(part), 0)
        kind = StepKind(key[0], member.open_beside)
        self._step.calls.beside = kind.beside
        self.plans.unmeasured.comes(kind, binding)
        if not self.is_rehearsing:
            num_ended = self._measure_apart(num_ended)
            THE_ROUND.begins(member.number, kind, member.all_numbers)
        try:
            self._room.beside(lambda: self._begin_plans(kind, before))
        except InfeasibleBudgetError as error:
            self._put_off(error)
        self._look_behind()
        self._compare_budgets()
        if member.runs_in_threads:
            self._say_threads()
        wanted = turns.is_missing or known.is_longest(key, binding)
        wanted = wanted or turns.looks_at_kind(known.is_new(kind))
        wanted = wanted or turns.looks_at_passing(known.wants_passing)
        if wanted and may_start and not self._recorder.is_on and records_ended() == num_ended:
            self._start_measuring(torch.device(part.device))
            if self._recorder.meter is not None:
                self._recorder.meter.begins_early = False
        if self._recorder.is_on:
            now = known.resident.now
            self._bytes_at_start = now.resident_bytes + now.passing_bytes
            self._unseen_at_start = max(0, now.passing_bytes - self._resident.watched_bytes)
            self._states_at_start = self._held.in_backward_bytes
            self._front_at_start = self._held.in_front_bytes
            self._follows = self._last_first is not None
            self._behind.begin()
            self._watch_what_may_go(part, arguments)
        elif not self.is_rehearsing and self.plans.is_for_sizes(key, binding):
            self._room.begins(torch.device(part.device))

    def _watch_what_may_go(self, part: TracedPart, arguments: list[Any]) -> None:
        """Let the record tell of gradients, results and inputs from before it that go."""
        meter = self._recorder.meter
        assert meter is not None
        made = [] if meter.begins_early else part.inputs_among(arguments)
        plain = (it for it in made if type(it) is torch.Tensor and it.layout is torch.strided)
        gradients = (it for it in self._held.present_gradients() if it.layout is torch.strided)
        stale = self._resident.earlier.stale
        meter.from_before = (*results_of((*plain, *gradients)), *stale)

    # -- beside other models ----------------------------------------------------------------------

    def _put_off(self, error: InfeasibleBudgetError) -> None:
        """Put off this refusal until the steps of all models were seen; or raise it."""
        if self.is_rehearsing or self.plans.is_share:
            THE_ROUND.refuses(self._resident.member.number)
            raise error
        member, calls = self._resident.member, self._step.calls
        kind = StepKind(calls.rows[0].key[0], calls.beside) if calls.rows else None
        others = [it.number for it in member.others()]
        if not THE_ROUND.put_off(member.number, kind, others):
            raise error
        # Frames of the forward that goes on would keep all that it makes.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        budget, least = format_bytes(self.budget_bytes or 0), error.min_feasible_bytes or 0
        if self._most_put_off and least <= self._most_put_off:
            return
        self._most_put_off = max(1, least)
        known = f" (as far as they are known, they take {format_bytes(least)})" if least else ""
        self._tell(
            f"steps do not fit {budget}: those of several models run on by schedules of little "
            f"memory, and may exceed it{known}, until the steps of each were seen, so that the "
            "refusal names a budget for all",
            ReplannedWarning,
        )

    def _tell_refusals(self, *, more_may_come: bool = False) -> None:
        """Refuse a forward whose refusal was put off, if nothing fits."""
        try:
            self.plans.refusals.tell(
                self._step.calls, more_may_come=more_may_come, is_step=not self.is_rehearsing
            )
        except InfeasibleBudgetError as error:
            self._put_off(error)

    def _has_others(self) -> bool:
        """Whether there are other models with a budget, or were to come as the first step began."""
        if self._awaits_others is None:
            self._awaits_others = THE_ROUND.is_coming()
        others = (it.number for it in self._resident.member.others())
        return self._awaits_others or bool(THE_ROUND.going_on(others))

    def _fixed_budget(self) -> int | None:
        """The budget, where it is no share."""
        return None if self.plans.is_share else self.budget_bytes

    def _compare_budgets(self) -> None:
        """Say so where another model has a larger budget for the same memory."""
        larger = 0 if self.is_rehearsing else self._resident.member.larger_budget()
        if larger and self.budget_bytes is not None:
            mine = format_bytes(self.budget_bytes)
            self._tell(
                f"this model's budget is {mine}, and another one's {format_bytes(larger)}: both "
                "bound the memory of the process, and each is kept in the steps of its own model "
                f"alone; budget={self.budget_bytes} for both keeps {mine}",
                PlainStepWarning,
            )

    def _say_threads(self) -> None:
        """Say that models are trained at once, in several threads; once."""
        if not self.is_rehearsing:
            self._tell(
                "a forward begins while a step by another thread waits for its backward: what "
                "either takes is measured as the other's, so that steps may exceed the budget, "
                "and torch's profiler, which measures them, may end the process; let one step at "
                "a time run, as by a threading.Lock from the forward to the optimizer's step, or "
                "train in processes",
                PlainStepWarning,
            )

    def _least_beside(self) -> int:
        """About the least that steps of other models take which may begin within this one."""
        others = self._resident.member.others()
        return sum(it.least_bytes() for it in others if not it.step.calls.is_open)

    def _look_beside(self, given: Callable[[], Mapping[int, int]]) -> None:
        """See what the loop holds in front of this step that no other count names.

        Parameters
        ----------
        given
            Gives bytes by address of what the step is given.
        """
        if self.is_rehearsing or self.parts[0].device != "cpu":
            return
        self._held.look_for_optimizers()
        if self._held.is_stepping:  # its local variables count by what they can be at most
            return
        more = self._in_front.look(
            self._last_first,
            lambda: self._resident.places_but(given()),
            few_bytes_of(self.budget_bytes),
            is_measured=self._recorder.turns.is_missing,
            is_known=bool(self.plans.known.records),
            but_bytes=self._resident.unwatched_bytes(self.budget_bytes),
            dropped=self._held.dropped_gradients(),
        )
        self._held.in_front_bytes = self._in_front.seen_after(self._last_first)
        peak, budget = max(self.peak_bytes or 0, self._first_peak), self.budget_bytes
        self._first_peak = 0
        if more and peak and budget is not None and peak + more > budget:
            self._tell(
                f"the loop holds {format_bytes(more)} more in front of its steps than when it was "
                "looked at before: steps since then may have exceeded the budget by up to "
                f"{format_bytes(peak + more - budget)}, later ones are planned for it",
                ReplannedWarning,
            )
        self._tell_uncounted()

    def _tell_uncounted(self) -> None:
        """Say so once where steps exceed the budget by what was there before the model got it."""
        peak, budget, more = self.peak_bytes, self._fixed_budget(), self._in_front.uncounted_bytes
        if self._tells_uncounted or peak is None or budget is None or peak + more <= budget:
            return
        if more <= few_bytes_of(budget):
            return
        self._tells_uncounted, named = True, self.options.extra_bytes
        self._tell(
            f"{format_bytes(more)} of other models' parameters, there when the model got its "
            f"budget, as targets, are not counted beyond extra_bytes={named}: with them "
            f"steps take up to {format_bytes(peak + more)}, over the budget of "
            f"{format_bytes(budget)}; where that is for them too, extra_bytes={named + more} "
            "counts them",
            PlainStepWarning,
        )

    def _begin_plans(self, kind: StepKind, found: Before) -> None:
        """Begin the step beside what was `found`, and what else the loop holds in front of it."""
        known = self.plans.known
        before = known.resident.saved()
        more = self._in_front.bytes_after(self._last_first)
        try:
            self.plans.begin(kind, found.with_more(more))
        except InfeasibleBudgetError as error:
            if not more or self._room.room_bytes:
                raise
            least = error.min_feasible_bytes
            if least:  # beside a larger budget, larger results of a loop are few bytes
                least += few_bytes_of(least)
            remedy = f"; budget={least} has room for them" if least else ""
            self._resident.member.uncounted_bytes = least or 0
            # It may be no part of the budget, as a model that was made meanwhile.
            known.resident.restore(before)
            self._in_front.ignore()
            self._held.in_front_bytes = 0
            self.plans.plan_anew()
            self.plans.begin(kind, found)
            self._tell(
                f"the loop holds {format_bytes(more)} in front of a step, beside which no plan "
                "is within the budget: they are not counted, and steps may exceed it by "
                f"them{remedy}",
                PlainStepWarning,
            )

    def _end_step(self) -> bool:
        """End the step before; whether a record may start in this one.

        Profiler ranges that are open here began under the record that ends here. As they end, they
        write to any record that runs by then. So the next record starts a step later.
        """
        may_start = not self._recorder.is_on and may_record()
        calls = self._step.calls
        is_whole = calls.has_backward and calls.is_done and not self._step.is_spoiled
        self._room.ends(is_whole=is_whole and not self._step.replaced)
        if is_whole and not self.is_rehearsing:
            self.plans.unmeasured.see(calls, self._step.replaced)
        if calls.rows and not self.is_rehearsing:
            self._last_first = calls.rows[0].key[0]
        self._read_step()
        self._look_at_order()
        self._recorder.stop()
        if not self.is_rehearsing:
            self._resident.earlier.add(
                result for call in self._step.calls.rows for result in call.results
            )
            self._recorder.turns.step_ends()
            if calls.rows:
                self._resident.around.step_ends(lambda: self._held.places)
        self._step.end()
        self._coming = None
        self._see_failed_backward()
        return may_start

    def _look_at_order(self) -> None:
        """Measure the next step if this one ran its halves in an order that no plan is for."""
        if self._recorder.turns.is_missing or self._recorder.is_on or not self._step.tells_bytes:
            return
        calls = self._step.calls
        if not calls.has_backward or self.plans.is_for(calls.keys, calls.halves):
            return
        self._recorder.turns.is_missing = True
        self._tell(
            "the backwards of a step came in an order that was not seen before: that step may "
            "have exceeded the budget, and the next one is measured",
            ReplannedWarning,
        )

    def _start_measuring(self, device: torch.device) -> None:
        """Begin a record, if it is worth it and no other profiler is on."""
        if self.is_rehearsing and not self._is_gauging:
            return
        self._measure_replacing()
        if not self._recorder.start(device, self.parts, len(self.plans.known.records)):
            self._tell(
                "the loop's code around the graphs, as its loss, is not measured under another "
                "profiler: steps may exceed the budget until one runs without it",
                PlainStepWarning,
            )

    def _measure_replacing(self) -> None:
        """Measure parts that run in the place of others, before a step runs them.

        A record tells nothing of a step with a part that is measured in it.
        """
        replacing, self._replacing = self._replacing, []
        for by, part in replacing:
            if by in self.parts:
                self.plans.measure_in_place_of(self.parts.index(part), self.parts.index(by))

    def _measure_apart(self, num_ended: int) -> int:
        """Measure such parts; how many records have ended besides where there were `num_ended`."""
        if not self._replacing:
            return num_ended
        close_waiting()
        is_same = records_ended() == num_ended
        self._measure_replacing()
        return records_ended() if is_same else num_ended

    def _optimizer_bytes(self) -> int:
        """What the step of an optimizer takes in all; 0 where that cannot be known."""
        if self._optimizers.peak_bytes:
            return self._optimizers.peak_bytes
        if not self.plans.known.coming_bytes and not self._held.made_bytes:
            return 0
        return self._held.adam_step_bytes() + self._resident.around_bytes()

    def _read_step(self) -> None:
        """Learn from the record of a step whose backwards have all run."""
        calls = self._step.calls
        reading = self._recorder.read(self._resident.watched_bytes)
        if reading is None:
            return
        if reading.behind is not None and self.budget_bytes is not None:
            left = self._behind.see(reading, self._step.given, self._coming)
            if left is not None:
                self._in_front.leaves(calls.rows[0].key[0], left)
        if not self.is_rehearsing:
            self._resident.made.learn(reading.held_blocks)
        if reading.record is None:
            return
        if not self.is_rehearsing:
            self._tell_unmeasured(reading)
        if self._has_made_states():
            self._recorder.turns.is_missing = True
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
        self._recorder.turns.learn(met, alone=self.plans.learn(reading.record))

    def _has_made_states(self) -> bool:
        """Whether the code of a measured step has made states of optimizers, in its backward.

        They are resident from then on: a plan by that record would count them twice. A few such
        records are left out; states that grow in each step are part of the code.
        """
        has_made = self._held.in_backward_bytes > self._states_at_start
        self._num_unlearnt += has_made
        return has_made and self._num_unlearnt <= _MOST_UNLEARNT

    def _tell_unmeasured(self, reading: StepReading) -> None:
        """Say so where a step that no plan was made for has taken more than the budget.

        Not among several models, whose refusals and lines tell of steps of them all.
        """
        known, calls = self.plans.known, self._step.calls
        if known.is_share or self.budget_bytes is None or self._has_others():
            return
        assert reading.record is not None
        if self.plans.is_lifted or all(it in known.numbers for it in reading.record.keys):
            return
        before = self._bytes_at_start + calls.rows[0].shared_bytes - reading.made_before
        late = before - (self._unseen_at_start if known.passes else 0)
        peak = max(before + reading.early_top_bytes, late + reading.top_bytes)
        self._first_peak = peak
        if peak > self.budget_bytes:
            self._tell(
                f"first steps have taken up to {format_bytes(peak)}, more than the budget: what "
                "the loop takes outside of the graphs is not known before one is measured",
                PlainStepWarning,
            )
        elif self._follows and not self._resident.made.num_bytes:
            self._front_peak = before + reading.front_top_bytes

    def _tell_made(self, budget_bytes: int) -> None:
        """Say so where a first step exceeded it by what the loop had made in the one before it."""
        peak, made = self._front_peak, self._resident.made.num_bytes
        more = made + max(0, self._held.in_front_bytes - self._front_at_start)
        self._front_peak = 0
        if peak and made and peak + more > budget_bytes:
            self._tell(
                f"first steps have taken up to {format_bytes(peak + more)}, more than the budget: "
                f"{format_bytes(made)} are what the loop makes between forward and backward, and "
                "holds through the next forward, which is not known before a step is measured",
                PlainStepWarning,
            )

    def _look_behind(self) -> None:
        """Say what outside of the plan takes more than the budget, once that is known."""
        budget = self.budget_bytes
        if self.peak_bytes is None or budget is None:
            return
        self._tell_made(budget)
        lines, self.lines_of_call = self.lines_of_call, None
        for line in lines(budget) if lines is not None else ():
            self._tell(line, PlainStepWarning)
        over = self.peak_bytes + self._resident.around.num_bytes - budget
        if self.parts[0].device == "cpu" and not self.is_rehearsing:
            for line in self._resident.around.new_lines(over, self.options.extra_bytes):
                self._tell(line, PlainStepWarning)
        for measured in (self._optimizers, self._behind, self._evaluations):
            for line in measured.new_lines(budget):
                self._tell(line, PlainStepWarning)

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
        resident = self.plans.known.resident.most_bytes
        lines.append(f"  resident       {format_bytes(resident)}")
        if self.peak_bytes is not None:
            lines.append(f"  predicted peak {format_bytes(self.peak_bytes)}")
        lines += self._room.report()
        lines += self._optimizers.report()
        lines += describe_calls(self.parts, self.numbers, self.plans.planned_for)
        lines.append(describe_checks(self.parts, self.check_note, self.num_compared))
        return "\n".join(lines)
