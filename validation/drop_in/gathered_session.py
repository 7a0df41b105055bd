"""The steps of a model that ranks run together, by FSDP2 or split layers; ops are scheduled.

The hooks of FSDP2 break Dynamo's graphs, so that each block is a part of the step: PyTorch gathers,
frees, prefetches and reduces around it as in a plain step. Split layers (tensor parallelism) send
messages within graphs; each schedule sends them once, in the order of the trace. In which order the
ranks communicate so does not depend on the schedules, and each rank follows a plan of its own.

A model in place says by its call when a step begins. Where the backend of `torch.compile` is given
blocks of a sharded model, or the model itself, its root says so, before it gathers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from schedsim.errors import UnsupportedError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning
from ..measure import storage_bytes
from ..measure.allocator import close_waiting, is_recording
from ..measure.cuda import requested_bytes
from ..ranks import Ranks
from ..ranks.members import is_spread
from ..ranks.step_words import StepWord, agreed, shapes_of
from ..torch_private import sharded_groups as private
from ..torch_private.graph_tasks import in_backward, when_backward_ends
from ..torch_private.profiler_records import is_profiling
from ..torch_private.sharded_roots import running_root
from ..torch_private.skipped_frames import hooks_run_as_they_are
from .beside.allocator_room import AllocatorRoom
from .beside.held_state import may_record
from .beside.optimizer_steps import close_all
from .beside.sharded_state import Passing, ShardedState
from .call_report import describe_calls, describe_checks
from .drop_in_options import DropInOptions
from .parts.output_uses import by_place, watched
from .parts.part_sizes import Binding
from .parts.traced_part import TracedPart
from .plans.gathered_calls import GatheredRecord, Mode, levels_of
from .plans.gathered_plans import GatheredPlans
from .records.outside_code import outside_meter
from .records.step_calls import MOST_LATER, PartCall
from .records.step_meter import StepMeter
from .records.step_record import Key, last_first
from .session import Session


def refuse_waiting_gradients(model: nn.Module) -> None:
    """Refuse a model between two of its micro-batches: steps of a rehearsal would reduce them.

    Raises
    ------
    UnsupportedError
        Gradients of `model` wait.
    """
    if any(True for state in private.states(model) for _ in private.held_gradients(state)):
        raise UnsupportedError(
            f"gradients of {type(model).__name__} wait for a step that reduces them",
            hint="give the budget between two steps of the optimizer",
        )


def refuse_other_communication(model: nn.Module) -> None:
    """Refuse models that communicate in other ways than by gathering or split parameters.

    Raises
    ------
    UnsupportedError
        Modules of `model` communicate where no graph shows it.
    """
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise UnsupportedError(
            f"ops of {type(model).__name__} communicate (SyncBatchNorm) in functions of their own, "
            "which no graph shows",
            hint="give the loss, with level='block': schedsim.rematerialize(model, (x, target), "
            "budget, loss, level='block')",
        )


class GatheredSession(Session):
    """The state that the parts of such steps share.

    Before every step the ranks exchange whether all of them could plan it.

    Attributes
    ----------
    is_rehearsed
        Whether a step with a made-up loss ran before those of the loop.
    """

    begins_together = True

    def __init__(self, options: DropInOptions, ranks: Ranks) -> None:
        # Dynamo keeps parts for good, and with them this: it may not keep the models.
        self._models: list[weakref.ref[nn.Module]] = []
        self._shares = ShardedState(lambda: self._alive, options)
        super().__init__(replace(options, dynamic=False), self._shares)
        self.ranks = ranks
        self._device = torch.device("cpu")
        self.is_rehearsed = self._lacks_meter = False
        self._gathered = GatheredPlans(options, self.parts, self._recorder.stop)
        self._room = AllocatorRoom(self._gathered, self._tell)
        self._passing = Passing(0, Mode())
        self._num_within = 0  # forwards that have begun while calls of others were open
        self._awaits_first = False  # whether a step has begun, and no graph has run in it
        self._is_gauging = False

    def takes(self, model: nn.Module) -> None:
        """Plan the steps of `model`, too.

        Raises
        ------
        UnsupportedError
            It communicates where no graph shows it.
        """
        refuse_other_communication(model)
        if not any(it is model for it in self._alive):  # blocks may be roots of their own
            self._models.append(weakref.ref(model))
        self._shares.look()
        self._device = next(model.parameters()).device
        if private.splits(model):
            self.sends = True
            self._wait_promptly()
            hooks_run_as_they_are(model)

    @property
    def moves_parameters(self) -> bool:
        """FSDP2 frees what it has gathered, and gathers it again for the backward."""
        return True

    @property
    def has_models(self) -> bool:
        """Whether some of them are there."""
        return bool(self._alive)

    @property
    def _alive(self) -> list[nn.Module]:
        return [model for ref in self._models if (model := ref()) is not None]

    def plans_for(self, model: nn.Module) -> bool:
        """Whether steps of a sharded `model` are planned here."""
        return any(it is private.state_of(model) for it in self._shares.states)

    @property
    def is_compared(self) -> bool:
        """True: steps of the loop are not compared, which all ranks would have to do together."""
        return True

    def note_compared(self) -> None:
        """Nothing, for the same reason."""

    @contextmanager
    def gauging(self) -> Iterator[None]:
        """Around a step of a rehearsal, by which the first steps of the loop are planned."""
        self._is_gauging = True
        try:
            yield
            self._end_record()
        finally:
            self._is_gauging = False

    # -- what steps and parts report --------------------------------------------------------------

    def forward_of_root_begins(self, inputs: Any, *, is_whole: bool = True) -> None:
        """A forward of a sharded model begins, which torch.compile has taken apart.

        Parameters
        ----------
        is_whole
            Whether nothing of it has run.
        """
        with self.ranks.leaving(), self.ranks.running("run a step"):
            if torch.is_grad_enabled():
                self._begin(inputs, is_whole=is_whole)
            else:
                self.evaluation_begins()

    def step_begins(self, inputs: Any) -> None:
        """A forward of the whole model is about to run."""
        self._begin(inputs, is_whole=True)

    def _begin(self, inputs: Any, *, is_whole: bool) -> None:
        """Begin a step, if none is open.

        All ranks exchange here, also one on which an earlier step is still open: until when it is,
        the cycle collector may decide, which comes to each rank at another time.
        """
        may_start = self._close_step()
        begins = not self._step.calls.is_open
        lasting = self._begun(inputs) if begins else None
        self._say_optimizers()
        self._agree(lambda: self._plan_beside(lasting), inputs)
        if begins:
            self._look_at_step(may_record=may_start and is_whole)

    def _begin_in_front(self, part: TracedPart, arguments: list[Any]) -> None:
        """Begin a step with a graph in front of the model, whose forward is to tell all ranks."""
        may_start = self._close_step()
        self._shares.see_whole(arguments[i] for i in part.fixed_positions)
        self._plan_beside(self._begun(part.inputs_among(arguments)))
        self._look_at_step(may_record=may_start)

    def _close_step(self) -> bool:
        """End what may have ended of the step before; whether a record may start then."""
        close_all()
        self._forgotten.free(self._step.calls)
        # Equal blocks are calls of one part: forwards tell how long a call has been held.
        self._num_within = self._num_within + 1 if self._step.calls.is_open else 0
        if self._num_within > MOST_LATER:
            self._leave_behind()
        return not self._recorder.is_on and may_record()

    def _look_at_step(self, *, may_record: bool) -> None:
        """Begin to record the step that has begun, if it is to be read, and may be."""
        if not self.is_rehearsing:
            self._say_first()
        is_read = self._is_gauging if self.is_rehearsing else self.is_learning
        if not is_read and not self.is_rehearsing and self.numbers:
            self._room.begins(self._device)
        if not may_record or not is_read:
            return
        if self.parts and all(part.is_measured for part in self.parts):
            close_waiting()  # records of other models, whose steps have ended
            meter = outside_meter(self._device)
            self._lacks_meter = meter is None and is_profiling() and not is_recording()
            if meter is not None:
                self._watch(self._recorder.begin(meter))

    def wants_record(self) -> bool:
        """Whether the next step of the loop is to be measured."""
        return self.is_learning

    def _say_optimizers(self) -> None:
        """Say which optimizer's step takes more than the budget, on this rank."""
        if self.budget_bytes is not None:
            for line in self._optimizers.new_lines(self.budget_bytes):
                self._tell(line, PlainStepWarning)

    def _say_first(self) -> None:
        """Say how many bytes the first steps take, if they may be more than the budget."""
        first = self._gathered.first
        if first.record is None and not self.is_rehearsed and not self._lacks_meter:
            return  # the first steps show the graphs, and a later one is read
        excess = "" if self.peak_bytes is not None else first.excess
        if excess:
            self._tell(f"steps before the budget is divided {excess}", PlainStepWarning)

    def _say_checkpointed(self, part: TracedPart) -> None:
        """Say that `part` is computed again by something else than its schedules."""
        self._tell(
            f"{part.name} runs again in a backward, as torch.utils.checkpoint around compiled code "
            "has it: its steps are not measured, and keep least; leave the checkpoint out, as "
            "schedules recompute what the budget needs, or compile what has it inside",
            PlainStepWarning,
        )

    def _watch(self, meter: StepMeter) -> None:
        # The record of the CPU's allocator tells no release of what was there when it began.
        session = weakref.ref(self)

        def released(num_bytes: int) -> None:
            found = session()
            if found is not None and found._recorder.meter is meter:
                meter.release(num_bytes)

        self._shares.watch_releases(released)

    def _begun(self, inputs: Any) -> int:
        """Begin a step, before which nothing is gathered; the bytes resident beside gradients."""
        calls = self._step.calls
        is_whole = bool(calls.rows) and calls.is_done and self._step.tells_bytes
        self._room.ends(is_whole=is_whole and not self.is_rehearsing)
        if is_whole and not self.is_rehearsing:
            self._gathered.saw(calls.keys, self._passing.mode)
        self._read_step()
        self._look_at_order()
        self._recorder.stop()
        self._step.end()
        self._awaits_first = True
        self._shares.look()
        self._passing = self._shares.passing()
        self._step.inputs = watched(inputs)
        self._step.given = by_place(self._step.inputs)
        lasting = self._shares.lasting_bytes + storage_bytes(inputs) + self._resident.left_bytes()
        if self._device.type == "cuda":
            lasting = max(lasting, requested_bytes(self._device) - self._passing.num_bytes)
        return lasting

    def evaluation_begins(self) -> None:
        """A forward of the whole model is about to run as it is: other ranks must run one too."""
        close_all()
        if any(map(is_spread, self._alive)):  # else nothing is left to gather (unshard)
            self._agree(lambda: None)

    def _agree(self, work: Callable[[], None], inputs: Any = None) -> None:
        def word() -> StepWord:
            work()
            does = "trains" if torch.is_grad_enabled() else "runs without gradients"
            if not self.sends:
                return StepWord(does)
            others = {rank for model in self._alive for rank in private.split_over(model)}
            return StepWord(does, inputs=shapes_of(inputs), split_with=tuple(sorted(others)))

        agreed(self.ranks.gather_from("start a step", word), self.ranks.members)

    def _plan_beside(self, lasting_bytes: int | None) -> None:
        if lasting_bytes is not None:
            beside = lasting_bytes
            self._room.beside(lambda: self._gathered.begin(beside))

    def forward_begins(self, part: TracedPart, arguments: list[Any], binding: Binding) -> int:
        """The number of the schedule by which `part` must run."""
        self.num_forwards += 1
        if not (self._awaits_first or self._step.calls.is_open or self.is_rehearsing):
            # Under a checkpoint, no call stays open.
            if in_backward():
                self._say_checkpointed(part)
            elif running_root() is None:
                self._begin_in_front(part, arguments)
        self._awaits_first = False
        index = self.parts.index(part)
        key = self._step.calls.key_of(index, part)
        number = self._gathered.number_for(key)
        kept = part.cost(number).kept_bytes
        shared = self._step.calls.shared_bytes(arguments, ())
        self._step.calls.rows.append(PartCall(key, part, (), number, kept, shared))
        self._mark("forward", len(self._step.calls.rows) - 1)
        return number

    def others_that_fit(self, part: TracedPart, binding: Binding) -> list[int]:
        """Schedules of `part` that keep no more than the one of this call."""
        most = self._step.calls.rows[-1].kept_bytes
        costs = [part.cost(number) for number in range(len(part.schedules))]
        return [cost.number for cost in costs if cost.kept_bytes <= most]

    def refuse(self, part: TracedPart, instead: int, wrong: str) -> None:
        """Run the present call by another schedule, because its own gives another step."""
        super().refuse(part, instead, wrong)
        self._gathered.refuse()

    def backward_begins(
        self, part: TracedPart, header: torch.Tensor, given: Sequence[torch.Tensor | None]
    ) -> None:
        """The backward half of a call of `part` is about to run."""
        number = self._step.calls.number_of(header)
        if number == len(self._step.calls.rows) - 1:
            when_backward_ends(self._room.looks.sees)  # what ranks reduce then is in it
        self._mark("backward", number)

    def _end_measured(self, number: int, gradients: Callable[[], list[torch.Tensor]]) -> None:
        """The backward of call `number` has run in a measured step."""
        if self._step.calls.is_done:
            # What the first block gathered is reduced when backward ends; then come other things.
            when_backward_ends(self._ends)

    def _ends(self) -> None:
        self._mark("end", -1)

    def _read_step(self) -> None:
        meter, calls = self._recorder.meter, self._step.calls
        if meter is not None:
            self._gathered.recorded()
        if meter is None or not calls.rows or not meter.marks or meter.marks[-1][0] != "end":
            return
        stretches, self._recorder.meter = meter.stop(), None
        self._shares.unwatch()
        if stretches is None or len(set(meter.marks)) < len(meter.marks):
            return  # some backward ran twice
        if tuple(calls.order) != last_first(len(calls.rows)):
            return
        costs = [call.part.cost(call.number) for call in calls.rows]
        levels = levels_of(calls.rows, costs, meter.marks, stretches)
        if levels is None:
            return
        record = GatheredRecord(
            calls.keys,
            tuple(call.part.mark(call.number) for call in calls.rows),
            self._passing.mode,
            tuple(call.shared_bytes for call in calls.rows),
            levels,
            self._passing.num_bytes,
        )
        if self.is_rehearsing:
            self._gathered.gauge(record)
        else:
            self._gathered.learn(record)

    def _look_at_order(self) -> None:
        """Tell of a step in another order than plans are for."""
        calls = self._step.calls
        halves = tuple(calls.order)
        if calls.is_done and halves and halves != last_first(len(calls.rows)):
            self._gathered.keeps_least = self._gathered.keeps_least or bool(self.numbers)
            self._tell(
                "backwards of sharded blocks ran in another order than from the last block to the "
                "first, which plans are for: "
                + ("all steps keep least from now on" if self.numbers else "such steps keep least"),
                PlainStepWarning,
            )

    @property
    def is_learning(self) -> bool:
        """Whether the next step like the last one will be read."""
        return self._gathered.wants(self._passing.mode)

    # -- for people -------------------------------------------------------------------------------

    @property
    def numbers(self) -> dict[Key, int]:
        """The schedule number of each call; a call is a part and how often it ran before."""
        return self._gathered.numbers

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, once steps were read."""
        return self._gathered.budget_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Predicted peak of a step on this rank; ``None`` before steps were read."""
        return self._gathered.peak_bytes

    @property
    def plan(self) -> Plan | None:
        """The plan of a part that was made last."""
        return self._gathered.plan

    @property
    def store_all_bytes(self) -> int:
        """About the bytes of the last step, had it recomputed nothing."""
        kept = self._gathered.store_all_bytes(self._step.calls.keys)
        return kept + self._shares.total_bytes

    def report(self) -> str:
        """A description of what was planned, for people."""
        if self.budget_bytes is None or self.peak_bytes is None:
            return "no plan yet: the first steps run with least memory, and are measured"
        lines = [f"budget {format_bytes(self.budget_bytes)} on this rank"]
        resident = self._gathered.resident_bytes - self._room.room_bytes
        lines.append(f"  resident       {format_bytes(resident)}")
        lines.append(f"  predicted peak {format_bytes(self.peak_bytes)}")
        lines += self._room.report()
        lines += self._optimizers.report()
        lines += describe_calls(self.parts, self.numbers)
        lines.append(describe_checks(self.parts, self.check_note))
        return "\n".join(lines)
