"""What the parts of the steps of one model report to, and what decides by which schedules they run.

A `LocalSession` plans for one process; a `GatheredSession` for a rank whose blocks gather.
"""

from __future__ import annotations

import gc
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from schedsim.errors import InfeasibleBudgetError, UnsupportedError
from schedsim.plans.plan import Plan
from schedsim.units import format_bytes

from ..compiled.group import Groups
from ..dry_cuda import has_values
from ..guards.plan_variants import PlainStepWarning, ReplannedWarning, RoundingWarning
from ..measure.allocator import NO_BLOCKS
from ..measure.storage import storage_bytes
from ..ranks import ALONE, Ranks
from ..ranks.members import has_ranks
from ..ranks.messages import said_messages
from ..torch_private.prompt_messages import prompt_from_now_on
from ..torch_private.skipped_frames import breaks_so_far
from ..torch_private.storage_refs import StorageWeakRef, is_gone, storage_key, weakly
from ..user_warnings import warn_user
from .beside.held_state import HeldState
from .beside.optimizer_steps import OptimizerSteps, close_all
from .beside.resident_bytes import ResidentBytes
from .drop_in_options import DropInOptions
from .parts.output_uses import results_of
from .parts.part_sizes import Binding
from .parts.traced_part import TracedPart
from .records.present_step import PresentStep
from .records.step_calls import Forgotten, StepCalls
from .records.step_record import Key
from .records.step_recorder import StepRecorder


class Session(ABC):
    """The state that the parts of the steps of one `torch.compile` share.

    Parameters
    ----------
    held
        What the model holds.

    Attributes
    ----------
    parts
        The parts that steps may run, by their numbers.
    num_forwards
        Number of forwards of parts so far.
    check_note
        How a step compared with the plain one, in words.
    checks
        Whether a new schedule is compared with another one before it runs.
    num_compared
        Number of steps of the loop that were compared with the plain one.
    tracing
        Makes the settings for a call in which Dynamo may trace.
    is_rehearsing
        Whether the running step is no step of the loop, so that nothing is learnt from it.
    says_plain
        Whether a line has said why a graph runs as it is.
    calls_again
        Whether whoever calls the parts runs the model as it is where a forward raises.
    is_undone
        Whether it is to do so: the forward that raised has left nothing behind.
    awaits_call
        Whether the model has got its budget, and was not called since.
    cast
        What stands for the block of autocast in which the last call has begun; or ``None``.
    lines_of_call
        Gives the lines on what giving the budget took, once that is known in bytes.
    ranks
        The ranks that run steps together, if ops or what is around graphs communicates.
    sends
        Whether graphs of steps send messages, for which other ranks wait.
    begins_together
        Whether all ranks say at the start of a step what they are about to do.
    """

    begins_together = False

    def __init__(self, options: DropInOptions, held: HeldState) -> None:
        self.options = options
        self.parts: list[TracedPart] = []
        self.groups = Groups()  # equal code of all parts is compiled once
        self.num_forwards = self.num_compared = 0
        self.is_rehearsing = self.says_plain = False
        self.calls_again = self.is_undone = False
        self.checks = options.check != "never"
        self.tracing: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.check_note = "not compared with the plain step"
        self._step = PresentStep()
        self._held = held
        self._resident = ResidentBytes(self._step, held)
        self._recorder = StepRecorder(self._step, self._end_record)
        self.awaits_call = False
        self.cast: Any = None
        self.ranks: Ranks = ALONE
        self.sends = False
        self._prompt: Any = None
        self.lines_of_call: Callable[[int], Iterator[str]] | None = None
        self._optimizers = OptimizerSteps(
            held, self._resident.things_around, self.is_trained, self.wants_record
        )
        self._forgotten = Forgotten()
        self._breaks_before = breaks_so_far()
        self._written: list[StorageWeakRef] = []
        self._knows_written = False  # whether a forward has told all that it writes

    # -- around what runs -------------------------------------------------------------------------

    def running(self) -> AbstractContextManager[None]:
        """Around a forward, in which ranks wait for each other: an error of one reaches all."""
        return self.ranks.running("run a step")

    def telling(self) -> AbstractContextManager[None]:
        """Around the backward of a part, for which other ranks wait there, or later."""
        if self.sends:
            return self.ranks.running("run a step")
        return self.ranks.telling("run a step")

    def _wait_promptly(self) -> None:
        """Let the loop's messages wait in Python from now on, where an error of others is heard."""
        if self._prompt is None and not torch.cuda.is_available():  # NCCL waits on the device
            self._prompt = weakref.finalize(self, prompt_from_now_on())
            self._prompt.atexit = False

    def is_over(self) -> None:
        """The model has its budget no more."""
        if self._prompt is not None:
            self._prompt()

    def agree_on(self, messages: Sequence[str]) -> None:
        """All ranks have traced a graph that sends these messages, if it sends any.

        A schedule runs each of them once, in the order of the trace: whatever schedules the ranks
        choose, the messages of one graph meet.

        Raises
        ------
        UnsupportedError
            It is not known which ranks they go to.
        SchedsimError
            The graphs of the ranks send others.
        """
        if not messages:
            return
        if self.ranks.alone:
            raise UnsupportedError(
                f"other ranks wait for its op {messages[0].partition('(')[0]}, and no DTensor says "
                "which ranks these are"
            )
        self._wait_promptly()
        self.sends = True
        self.ranks.same("trace a graph", {"the messages of a graph": said_messages(messages)})

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Mark the block as no step of the loop; it may come in the middle of a step."""
        before, calls, self.is_rehearsing = self.is_rehearsing, self._step.calls, True
        self._step.calls = calls.copy()
        self._recorder.stop()
        try:
            yield
        finally:
            self.is_rehearsing = before
            # The loop's calls: those of the block may live on, in a cycle.
            self._step.calls = calls

    def is_held(self) -> bool:
        """Whether a backward of the step may still come, perhaps but for a cycle."""
        return self._step.calls.is_open

    def holds_forward(self) -> bool:
        """Whether something holds what a forward of a rehearsal has made, as a hook that logs it.

        What it keeps for its backward stands beside what comes, until that of another has run in
        its place. It belongs to no step.
        """
        if self._step.calls.is_open:
            gc.collect()
        if not self._step.calls.is_open:
            return False
        self._step.calls = StepCalls()
        return True

    def note(self, line: str) -> None:
        """Add `line` to the report, once."""
        if line not in self.check_note:
            self.check_note += f"; {line}"

    def _tell(self, line: str, kind: type[UserWarning]) -> None:
        """Warn of `line`, and add it to the report, once."""
        if line not in self.check_note:
            self.note(line)
            warn_user(line, kind)

    def say_rounding(self, line: str) -> None:
        """Say in `line` why steps are the plain ones within rounding, once."""
        self._tell(line, RoundingWarning)

    def say_plain(self, line: str) -> None:
        """Say in `line` what runs as it is, not within the budget, once."""
        self.says_plain = True
        self._tell(line, PlainStepWarning)

    def say_uncompiled(self, why: str) -> None:
        """Say why steps run op by op, within the budget, where compiled ones were asked for."""
        self._tell(f"steps run op by op and are not compiled: {why}", PlainStepWarning)

    def note_written(self, tensors: Sequence[torch.Tensor]) -> None:
        """A forward writes `tensors`, which were there before it."""
        self._written = [weakly(tensor) for tensor in tensors if tensor.layout is torch.strided]
        self._knows_written = True

    def changing(self, inputs: Sequence[Any]) -> list[int]:
        """Which of a part's `inputs` a forward writes, there or behind the part."""
        storages = {reference.cdata for reference in self._written if not is_gone(reference)}
        return [
            i
            for i, it in enumerate(inputs)
            if type(it) in (torch.Tensor, nn.Parameter)
            and it.layout is torch.strided
            and storage_key(it) in storages
        ]

    def doubted(self, inputs: Sequence[Any]) -> list[int]:
        """Which of a part's `inputs` are no parameters: code behind the part may write them."""
        return [] if self._knows_written else untrained(inputs)

    def see_written(self, part: TracedPart, _number: int, written: frozenset[int]) -> None:
        """A backward of `part` by a schedule begins, and these arguments were written meanwhile."""
        part.buffers.learn(written)

    def add(self, part: TracedPart) -> None:
        """Add `part` to the parts that steps may run; on a dry device no results are compared."""
        self.parts.append(part)
        self.checks = self.checks and has_values(torch.device(part.device))

    @property
    def follows_gradients(self) -> bool:
        """Whether graphs are traced again for gradients in strides that were not foreseen.

        Several ranks would have to trace together, and Inductor's steps round differently anyway.
        """
        return not (self.options.compile or self.is_distributed)

    @property
    def has_broken(self) -> bool:
        """Whether Dynamo has broken a trace since this session began."""
        return breaks_so_far() != self._breaks_before

    @property
    def moves_parameters(self) -> bool:
        """Whether parameters may come back in other memory in the backward, with the same data."""
        return False

    @property
    def is_distributed(self) -> bool:
        """Whether several ranks run the step."""
        return has_ranks()

    def resident_bytes(self, given: Any) -> int:
        """Bytes of what the model and other models hold now, and of the tensors of `given`."""
        return self._held.present_bytes + storage_bytes(given)

    def is_trained(self) -> None:
        """An optimizer has stepped the model: say so where nobody has called it for that."""
        if self.awaits_call:
            self.awaits_call = False
            self._tell(
                "an optimizer steps a model that nobody has called since it got its budget: what "
                "the loop calls instead, as another of its methods, a part of it or what "
                "torch.compile made of it, runs as it is, not within the budget; give that part "
                "the budget, or call the model itself",
                PlainStepWarning,
            )

    def wants_record(self) -> bool:
        """Whether the next step of the loop is to be measured."""
        return self._recorder.turns.is_missing

    def traces_around(self, inputs: Any) -> None:
        """Dynamo does not take a function whole, in a call with `inputs`, but graphs within it."""
        if not self.num_forwards:
            self._resident.around.see(inputs)

    def evaluation_begins(self) -> None:
        """A forward of the whole model is about to run as it is."""
        close_all()

    def measuring_evaluation(self, inputs: Any) -> AbstractContextManager[None]:
        """Around a forward of the whole model that runs as it is, on `inputs`."""
        return nullcontext()

    @property
    @abstractmethod
    def is_compared(self) -> bool:
        """Whether whoever compares steps with the plain ones has compared one with these parts."""

    @abstractmethod
    def note_compared(self) -> None:
        """A step by these parts was compared with the plain one."""

    @abstractmethod
    def step_begins(self, inputs: Any) -> None:
        """A forward of the whole model is about to run; the first part will say more."""

    def evaluation_ends(self, outputs: Any) -> None:
        """Such a forward has run, and a later step may begin while the loop holds its outputs."""
        if not torch.is_grad_enabled():  # else in a step, or without anything to train
            self._resident.earlier.add_evaluation(outputs)

    def note_outputs(self, outputs: Any) -> None:
        """What needs no gradient gives `outputs`, which the loop may hold in later steps."""
        if not self.is_rehearsing:
            self._resident.earlier.add_evaluation(outputs)

    def replace(self, part: TracedPart, by: TracedPart, why: str) -> None:
        """Forget the steps that ran `part`: later ones run `by` in its place, and `why`."""
        self._step.replaced[self.parts.index(part)] = self.parts.index(by)
        self.note(f"{by.name} runs in the place of {part.name}: {why}")

    def refused_again(
        self, error: InfeasibleBudgetError, _step: Callable[[], None]
    ) -> InfeasibleBudgetError:
        """The refusal of a first forward, by what a `_step` with a made-up loss tells besides."""
        return error

    # -- what the parts report --------------------------------------------------------------------

    @abstractmethod
    def forward_begins(self, part: TracedPart, arguments: list[Any], binding: Binding) -> int:
        """The number of the schedule by which `part` must run."""

    @abstractmethod
    def others_that_fit(self, part: TracedPart, binding: Binding) -> list[int]:
        """Schedules of `part` by which its present call may run, too."""

    def room_for(self, _part: TracedPart, _binding: Binding) -> float:
        """Bytes that the present call may take beside what is resident, as far as it is known."""
        return math.inf

    def refuse(self, part: TracedPart, instead: int, wrong: str) -> None:
        """Run the present call by another schedule, because its own gives another step."""
        call = self._step.calls.rows[-1]
        call.number, call.kept_bytes = instead, part.cost(instead, call.binding).kept_bytes
        line = f"a schedule of {part.name} is not its step: {wrong}; another one runs instead"
        self.note(line)
        warn_user(line, ReplannedWarning)

    def say_over(self, part: TracedPart, num_bytes: int) -> None:
        """Say that a comparison of schedules may take so many bytes more than the budget."""
        self._tell(
            f"schedules of {part.name} are compared beside what the step before has left: this "
            f"step may exceed the budget by up to {format_bytes(num_bytes)}; "
            'check="never" compares nothing',
            PlainStepWarning,
        )

    def refuse_ahead(self, part: TracedPart, wrong: str) -> None:
        """Say that a schedule that was made for sizes to come is not used."""
        line = f"a schedule of {part.name} for other sizes is not its step: {wrong}; it never runs"
        self.note(line)
        warn_user(line, ReplannedWarning)

    @property
    def has_model(self) -> bool:
        """Whether something that its model holds is in memory."""
        return self._held.device is not None

    def see(self, model: nn.Module) -> None:
        """Count what `model` holds, in no part of the step too."""
        self._held.see([*model.parameters(), *model.buffers()])

    def forward_ends(self, part: TracedPart, outputs: list[Any], header: torch.Tensor) -> None:
        """Note that a forward has ended, whose saved tensors live as long as `header`."""
        call = self._step.calls.rows[-1]
        call.header = weakly(header)
        call.place = header.data_ptr()
        call.results = results_of(outputs)
        if self._recorder.meter is not None:
            self._recorder.meter.results.add(len(self._step.calls.rows) - 1, outputs)
        self._mark("after forward", len(self._step.calls.rows) - 1, self._watched(part))

    def forward_fails(self) -> None:
        """A forward has raised: no backward of it will come, and its step tells nothing."""
        calls = self._step.calls
        if calls.rows and calls.rows[-1].header is None:
            calls.rows.pop()
            calls.order = [half for half in calls.order if half != len(calls.rows)]
        self._step.is_spoiled = True
        self._recorder.stop()

    def say_undone(self, what: str) -> None:
        """Say `what` a forward has left that the plain step, which raises too, leaves otherwise."""
        self._tell(
            f"a forward {what}; the plain step leaves what has run by then", PlainStepWarning
        )

    def _watched(self, part: TracedPart) -> dict[int, int]:
        """Bytes, by address, of what the code behind a forward of `part` may release."""
        return {}

    @abstractmethod
    def backward_begins(
        self, part: TracedPart, header: torch.Tensor, given: Sequence[torch.Tensor | None]
    ) -> None:
        """The backward half of a call of `part` is about to run, with the gradients `given`."""

    def note_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:  # noqa: B027
        """A backward half gives these `gradients` to the arguments of its part."""

    def backward_ends(
        self, header: torch.Tensor, gradients: Callable[[], list[torch.Tensor]]
    ) -> None:
        """The backward half of a call has run, and gives its inputs these gradients."""
        number = self._step.calls.number_of(header)
        self._mark("after backward", number)
        if number < 0:
            return
        self._step.calls.rows[number].is_done = True
        if self._recorder.is_on:
            self._end_measured(number, gradients)

    def _end_measured(self, number: int, gradients: Callable[[], list[torch.Tensor]]) -> None:
        """The backward of call `number` has run in a measured step."""
        assert self._recorder.meter is not None
        self._recorder.meter.results.end(number, gradients())

    def may_give_early(self, part: TracedPart) -> bool:
        """Whether what the loop does with gradients fits beside the rest of this backward."""
        return False

    def _mark(self, what: str, number: int, watched: Mapping[int, int] = NO_BLOCKS) -> None:
        """Note what is about to run: a half of call `number`, or the code after it."""
        if what in ("forward", "backward") and number >= 0:
            self._step.calls.order.append(number if what == "forward" else ~number)
        if what == "backward":
            self._optimizers.num_backwards += 1
        self._recorder.mark(what, number, watched)

    def _leave_behind(self) -> None:
        """End a step that is open only because of calls that the loop holds through many steps.

        What they keep counts as resident from then on.
        """
        left = [] if self.is_rehearsing else self._step.calls.left_behind()
        if not left:
            return
        self._recorder.stop()
        self._resident.leave(left)
        others = (call for call in self._step.calls.rows if not any(call is it for it in left))
        self._resident.earlier.add(result for call in others for result in call.results)
        self._step.calls, self._step.is_spoiled = StepCalls(), True
        kept = format_bytes(self._resident.left_bytes())
        self._tell(
            f"what a forward keeps ({kept}) is held through many steps "
            "without its backward: it counts as resident from now on; del its outputs",
            ReplannedWarning,
        )

    def _end_record(self) -> bool:
        """End the record if no backward of its step may still come; whether there was one."""
        if not self._recorder.is_on:
            return False
        if self._step.calls.is_open:
            self._recorder.end_later()
            return False
        self._read_step()
        self._recorder.stop()
        return True

    @abstractmethod
    def _read_step(self) -> None:
        """Learn from the record of a step whose backwards have all run."""

    # -- for people -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def numbers(self) -> dict[Key, int]:
        """The schedule number of each call; a call is a part and how often it ran before."""

    @property
    @abstractmethod
    def budget_bytes(self) -> int | None:
        """The budget in bytes, once a step has come; else ``None``."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Predicted peak of the steps planned last; ``None`` before."""

    @property
    @abstractmethod
    def plan(self) -> Plan | None:
        """The plan that was made last."""

    @property
    @abstractmethod
    def store_all_bytes(self) -> int:
        """About the bytes of a step that recomputes nothing, as far as its parts are known."""

    @abstractmethod
    def report(self) -> str:
        """A description of what was planned, for people."""


def untrained(inputs: Sequence[Any]) -> list[int]:
    """Which of a part's `inputs` are tensors that nothing trains, as buffers."""
    return [i for i, it in enumerate(inputs) if type(it) is torch.Tensor and not it.requires_grad]
