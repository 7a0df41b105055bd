"""A part of a step, traced by Dynamo, at run time: both halves run by one of its schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from schedsim import Schedule

from ...capture.program import Program
from ...compiled.compile_step import (
    fused_where_it_works,
    narrower_where_it_works,
    without_gradients_where_it_works,
)
from ...compiled.group_sizes import GroupSize
from ...compiled.halves import keep_halves
from ...costs.lent_tensors import lending
from ...guards.backward_place import BackwardAutocast
from ...op_level.emit import Halves
from ...op_level.random_replay import RandomReplay
from ...ranks.wrappers import bucket_bytes
from ...torch_private.autograd_nodes import has_saving_hooks
from ...torch_private.op_modes import without_alias_checks
from ..checks.schedule_check import ScheduleComparison
from .early_gradients import EarlyGradients, Places, pieces_of
from .gradient_layouts import put_in_form
from .joint_part import JointPart
from .part_code import EmittedCode, PartCode
from .part_sizes import Binding
from .planned_part import PlannedPart
from .written_buffers import BufferVersion, WrittenBuffers

if TYPE_CHECKING:
    from ..session import Session
    from .gradient_layouts import GradientLayouts
    from .lacking_gradients import LackingGradients
    from .own_zeros import OwnZeros


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SIZES = tuple(GroupSize)
_NUMBER_BITS = 32
"""Of the number of a schedule, where it is marked with the size of groups."""


class TracedPart(PlannedPart):
    """The object that AOTAutograd calls for one graph of Dynamo.

    Parameters
    ----------
    session
        What the parts of a step share; every half of a call reports to it.
    lacking
        Outputs for which the backward was traced without a gradient: none will come.
    program
        The program in groups, if it is to run by these.
    group_size
        Of these groups; below the largest it stands in the place of the part that autograd calls.

    Attributes
    ----------
    code : PartCode
        The code of its schedules.
    run_counts
        Op -> number of runs in the last call.
    backward_place
        Where the backward was traced to run: within autocast or outside of it.
    early
        How the gradients of the next call are given before its backward ends; ``None`` for at its
        end.
    layouts
        What runs backwards whose gradients come in other forms; ``None`` where nothing does.
    group_size : GroupSize
        Of its groups, if it runs by any.
    replaced_by_zeros
        Of the gradients for the backward that begins, those in whose place AOTAutograd puts zeros.
    is_followed
        Whether other graphs of the same call may follow, because Dynamo breaks its trace.
    met
        The part, the schedule and the buffers of the last call, where code behind it may write to
        these.
    own_zeros
        What tells zeros from gradients that do not come, where functions of the user's own make
        some; ``None`` where there are no such functions.
    """

    def __init__(
        self,
        session: Session,
        joint: JointPart,
        name: str,
        *,
        compiled: bool = False,
        lacking: Container[int] = (),
        program: Program | None = None,
        group_size: GroupSize = GroupSize.LARGE,
    ) -> None:
        if program is None:
            program = joint.program
            if compiled:
                program = fused_where_it_works(program, name, session.groups)
        if compiled:
            keep_halves(program, {joint.inputs[i] for i in joint.doubted})
        super().__init__(joint, program, name, session.options.keep, lacking)
        self.session, self.group_size = session, group_size
        self.is_followed = False
        self.replaced_by_zeros: frozenset[int] = frozenset()
        self.code = PartCode(joint, program, self.sizes.names, compiled=compiled)
        self._smaller: list[TracedPart] = []  # the same part in smaller groups, the larger first
        self._running = 0  # which of these runs where autograd calls this one; 0 for none
        self.backward_place = BackwardAutocast()
        self._counts = [0] * self.graph.num_ops
        self._zeros = tuple(self._counts)
        self._made_of_none: dict[frozenset[int], list[int]] = {}
        self.own_zeros: OwnZeros | None = None
        self.met: tuple[TracedPart, int, tuple[BufferVersion, ...]] | None = None
        self.layouts: GradientLayouts | LackingGradients | None = None
        self.early: EarlyGradients | None = None
        # By the place of a call's header; nodes of the autograd graph hold them.
        self._early_calls: WeakValueDictionary[int, EarlyGradients] = WeakValueDictionary()

    # -- the same part in other forms -------------------------------------------------------------

    def in_smaller_groups(self) -> TracedPart | None:
        """The same part in groups that take less room than its present ones, from now on.

        ``None`` if there are none. Their code is compiled once.
        """
        present = self._present
        if self._running == len(self._smaller):
            made = narrower_where_it_works(
                self._joint.program, present.program, self.session.groups, present.group_size
            )
            if made is None:
                return None
            program, size = made
            smaller = TracedPart(
                self.session,
                self._joint,
                self.name,
                compiled=True,
                lacking=self._lacking,
                program=program,
                group_size=size,
            )
            smaller.backward_place = self.backward_place
            smaller.share_buffers(self)
            smaller.is_followed, smaller.own_zeros = self.is_followed, self.own_zeros
            smaller.layouts, smaller.makes_zeros = self.layouts, self.makes_zeros
            self._smaller.append(smaller)
        self._running += 1
        self._present.uses_as(present)
        return self._present

    @property
    def _present(self) -> TracedPart:
        """The part that runs where autograd calls this one."""
        return self._smaller[self._running - 1] if self._running else self

    def mark(self, number: int) -> int:
        """The schedule `number` as one number, which tells these groups from the other ones."""
        return (_SIZES.index(self.group_size) << _NUMBER_BITS) + number

    def runs_as(self, part: TracedPart) -> None:
        """Run as itself again, or in smaller groups; calls in other ones may be in flight."""
        self._running = 0 if part is self else self._smaller.index(part) + 1

    def _marked(self, number: int) -> TracedPart:
        """The part that has marked `number`."""
        size = _SIZES[number >> _NUMBER_BITS]
        return next((part for part in self._smaller if part.group_size is size), self)

    def without_gradients(self, lacking: Collection[int]) -> TracedPart | None:
        """The same part for a backward without these gradients; ``None`` if it has no such form."""
        program = None
        if self.program is not self._joint.program:  # else inductor did not compile it
            program = without_gradients_where_it_works(
                self._joint.program, lacking, self.session.groups, size=self.group_size
            )
        if program is None:
            return None
        found = TracedPart(
            self.session,
            self._joint,
            self.name,
            compiled=True,
            lacking=[self.given[i].output for i in lacking],
            program=program,
        )
        found.own_zeros = self.own_zeros
        return found

    def runs_by(self, layouts: GradientLayouts | LackingGradients) -> None:
        """Let `layouts` choose the backwards: no zeros are made for gradients that do not come."""
        self.layouts, self.makes_zeros = layouts, False

    def _taken_without(self, number: int) -> tuple[PlannedPart, int] | None:
        """The part and the number of its schedule that run where gradients lack as in `use`."""
        if self.layouts is None:
            return None
        return self.layouts.taken_without(self, number, self.use.lacking)

    # -- its schedules ----------------------------------------------------------------------------

    def code_of(self, schedule: Schedule) -> EmittedCode:
        """The code of `schedule`, for `add`; may be made in another thread. O(runs)."""
        return self.code.emitted([int(run) for run in schedule.bind(self.graph)])

    def add(self, schedule: Schedule, code: EmittedCode | None = None) -> int:
        """Add `schedule`, by which calls can run from now on; returns its number."""
        number = super().add(schedule)
        if number == self.code.num:
            self.code.add([int(run) for run in schedule.bind(self.graph)], code)
        return number

    # -- its halves -------------------------------------------------------------------------------

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The outputs, followed by what `backward` needs; `arguments` is emptied."""
        try:
            return self._forward(arguments)
        except BaseException:  # as of a check: the loop may go on with the next batch
            self.session.forward_fails()
            raise

    def _forward(self, arguments: list[Any]) -> list[Any]:
        early, self.early = self.early, None
        found = dict(zip(self._joint.inputs, arguments, strict=True))
        binding = self.sizes.read(arguments)
        given = arguments if early is None else early.own(arguments)
        with without_alias_checks(), lending(given):  # measures the ops, and compares schedules
            number = self.session.forward_begins(self._present, given, binding)
            given.clear()
            arguments.clear()
            part = self._present  # plans may have put small groups in the place of large ones
            if self.session.checks:
                number = part._compared(number, found, binding)
            part.trust.meet(binding)
        if self._joint.doubted:
            self.met = part, number, self.buffers.met(self._joint.inputs, found)
        return part._run_forward(number, binding, found, early)

    def _run_forward(
        self, number: int, binding: Binding, found: dict[int, Any], early: EarlyGradients | None
    ) -> list[Any]:
        """The forward by schedule `number`, on the arguments that were `found`."""
        row, constants = self.code.row(number), self.program.constants
        halves = row.halves
        resident = [found[v] if v in found else constants[v] for v in halves.resident]
        found.clear()
        random = RandomReplay(len(halves.repeated_random), self.device)
        self._counts[:] = self._zeros
        sizes = self.code.sizes(number, binding)
        outputs, carried = halves.forward.function(resident, self._counts, random, None, sizes)
        kept = [resident[at] for at in row.kept]
        # By NumPy: bytes of torch's allocator would count beside the step.
        moved = has_saving_hooks() or self.session.moves_parameters
        places = () if moved else map(place_of, kept)
        numbers = [self.mark(number), *binding, *places]
        header = torch.from_numpy(np.array(numbers, np.int64))
        self._early_calls.pop(header.data_ptr(), None)
        if early is not None:
            self._early_calls[header.data_ptr()] = early
        states = [random.states[k] for k in halves.carried_states]
        self.session.forward_ends(self, self.code.held(outputs), header)
        returned = self.code.returned(outputs, binding)
        return [*returned, header, *states, *kept, *carried]

    def _compared(self, number: int, found: dict[int, Any], binding: Binding) -> int:
        """Compare the schedule `number` if it is new; returns the number of the schedule to run.

        And others that were made for sizes to come, of which no step is to wait then.
        """
        trust = self.trust
        comparison = ScheduleComparison(
            self, found, binding, lambda: self.session.room_for(self, binding)
        )
        if trust.is_new(number, binding):
            if self.session.is_rehearsing:  # a whole step is compared with the plain one anyway
                trust.trust(number, binding)
            else:
                others = self.session.others_that_fit(self, binding)
                chosen, wrong = trust.settle(number, binding, others, comparison.difference)
                if wrong is not None:
                    self.session.refuse(self, chosen, wrong)
                number = chosen
        trust.runs(number, binding)
        self._compare_ahead(number, comparison, binding)
        return number

    def _compare_ahead(self, number: int, comparison: ScheduleComparison, binding: Binding) -> None:
        """Compare schedules that no step needs yet, beside the schedule `number` of this one."""
        trust = self.trust
        if not trust.expects:
            return
        # Nothing is looked for in steps that have nothing to compare: most of them.
        fitting = self.session.others_that_fit(self, binding) if trust.may_compare(binding) else []
        for ahead in trust.expected(binding, fitting):
            others = [number, *fitting]
            _, wrong = trust.settle(ahead, binding, others, comparison.difference)
            if wrong is not None:
                self.session.refuse_ahead(self, wrong)

    def watch_buffers(self) -> Callable[[], None]:
        """What to call as the backward of the last call begins, before it asks for what is kept."""
        met, self.met = self.met, None
        name, place, session = self.name, self.backward_place, self.session

        def begins() -> None:
            place.run_here(name)
            if met is not None:
                part, number, buffers = met
                session.see_written(part, number, WrittenBuffers.written_since(buffers))

        return begins

    def reads_again(self, number: int, places: frozenset[int]) -> list[str]:
        """Names of the arguments at these places that the backward by schedule `number` reads."""
        read = self.code.halves(number).read_backward
        return [self.buffers.names[i] for i in sorted(places) if self._joint.inputs[i] in read]

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The gradients of the arguments of `forward`; `arguments` is emptied."""
        lacking, self.replaced_by_zeros = self.replaced_by_zeros, frozenset()
        with self.session.telling():
            return self._marked(int(arguments[0][0]))._backward(arguments, lacking)

    def _backward(self, arguments: list[Any], lacking: frozenset[int]) -> list[Any]:
        num_given = len(self.program.tangents)
        given = arguments[len(arguments) - num_given :]
        del arguments[len(arguments) - num_given :]
        header = arguments[0]
        number, *numbers = header.tolist()
        number -= self.mark(0)
        num_open = len(self.sizes.names)
        binding, before = tuple(numbers[:num_open]), numbers[num_open:]
        self.session.backward_begins(self, header, given)
        lacking |= {i for i, it in enumerate(given) if it is None}
        row = self.code.row(number)
        mine = row.halves
        part, halves = self, mine
        if self.layouts is not None:
            part, halves = self.layouts.backward_of(self, number, given)
        else:
            put_in_form(given, self.given)
        first = 1 + len(mine.carried_states)
        states = dict(zip(mine.carried_states, arguments[1:first], strict=True))
        kept = arguments[first : first + len(row.kept)]
        self._see_replaced(row, kept, before)
        resident = row.resident_again(kept)
        kept.clear()
        carried = arguments[first + len(row.kept) :]
        arguments.clear()
        if halves is not mine:
            states, resident, carried = _as_read_by(halves, mine, states, resident, carried)
        random = RandomReplay(len(halves.repeated_random), self.device)
        for k in halves.carried_states:
            random.states[k] = states[k]
        del states
        sizes = self.code.sizes(number, binding)
        early = self._early_calls.get(header.data_ptr())
        places: Places = []
        if early is not None:
            halves, places = self.code.in_pieces(number, early.bucket_bytes)
        gradients = halves.backward.function(
            resident, carried, given, part._counts, random, None, sizes
        )
        if early is not None:
            return self._begun(early, header, gradients, places)
        found = part.code.by_argument(gradients)
        if lacking:
            # A part that was traced for these has made them of what comes, and zeros of nothing.
            for at in part._ungiven(lacking):
                found[at] = None
        if part is not self:
            self._count(part)
        self.session.note_gradients(found)
        self.session.backward_ends(header, lambda: part.code.of_inputs(found))
        return found

    def _see_replaced(self, row: EmittedCode, kept: Sequence[Any], before: Sequence[int]) -> None:
        """Say which of the `kept` arguments were given other data since they were at `before`."""
        if not before or self.session.is_rehearsing or before == list(map(place_of, kept)):
            return
        program = self.program
        fixed = (*program.parameters.items(), *program.buffers.items())
        names = {value: name for name, value in fixed}
        replaced = [
            names.get(row.halves.resident[at], "an input")
            for at, it, place in zip(row.kept, kept, before, strict=True)
            if place_of(it) != place
        ]
        if replaced:
            self.session.say_rounding(
                f"{replaced[0]} was given other data (its .data, or its storage) between forward "
                "and backward: of a plain step some ops read the old data in the backward, and "
                "others the new, where a schedule reads the new, so that gradients may differ; "
                "assign it behind the backward"
            )

    def _ungiven(self, lacking: frozenset[int]) -> list[int]:
        """Arguments to which no gradient comes where these lack."""
        if lacking not in self._made_of_none:
            found = self._joint.made_of_none(lacking)
            if found and self.own_zeros is not None:
                autocast = self.backward_place.traced
                none = self.own_zeros.ungiven(self._joint.given, lacking, autocast)
                found = [at for at in found if at in none]
            self._made_of_none[lacking] = found
        return self._made_of_none[lacking]

    # -- gradients that come early ----------------------------------------------------------------

    def gives_early(self, arguments: Sequence[Any]) -> EarlyGradients | None:
        """How gradients come before the backward ends, where a wrapper averages them over ranks.

        ``None`` where nothing does, and where they all come together.
        """
        num_bytes = bucket_bytes()
        if num_bytes is None or self.layouts is not None or not torch.is_grad_enabled():
            return None
        if len(arguments) != len(self._joint.inputs):
            return None
        number = self.add(Schedule.store_all(self.graph))
        buckets = self.code.buckets(number, num_bytes)
        later = [arguments[at] for bucket in buckets[1:] for at in bucket]
        if not later or any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in later):
            return None
        return EarlyGradients(buckets, arguments, num_bytes)

    def _begun(
        self, early: EarlyGradients, header: torch.Tensor, lists: Any, places: Places
    ) -> list[Any]:
        """The first gradients of a backward that runs as its `lists` of gradients are asked for."""
        num_inputs = len(self.program.input_gradients)

        def ended(last: list[torch.Tensor]) -> None:
            of_inputs = last[len(last) - num_inputs :]
            self.session.backward_ends(header, lambda: of_inputs)

        pieces = pieces_of(lists, places, ended)
        at_once = not self.session.may_give_early(self)
        return early.begin(pieces, len(self._joint.gradients), at_once=at_once)

    def _count(self, other: TracedPart) -> None:
        """Add what the backward of `other` has run."""
        index = {name: i for i, name in enumerate(self.graph.op_names)}
        for name, count in other.run_counts.items():
            if name in index:
                self._counts[index[name]] += count
        other._counts[:] = [0] * len(other._counts)

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last call; complete after its backward."""
        return dict(zip(self.graph.op_names, self._counts, strict=True))


def place_of(argument: Any) -> int:
    """The address of a tensor with memory of its own; 0 for what has none."""
    is_plain = type(argument) in _PLAIN and argument.layout is torch.strided
    return argument.data_ptr() if is_plain else 0


def _as_read_by(
    halves: Halves,
    mine: Halves,
    states: Mapping[int, Any],
    resident: Sequence[Any],
    carried: Sequence[Any],
) -> tuple[dict[int, Any], list[Any], list[Any]]:
    """What the forward half of `mine` has left, in the places that the backward of `halves` reads.

    Generator states, resident values and carried ones.
    """
    of_call = {mine.repeated_random[k]: state for k, state in states.items()}
    there = dict(zip(mine.resident, resident, strict=True))
    made = dict(zip(mine.carried, carried, strict=True))
    return (
        {k: of_call[halves.repeated_random[k]] for k in halves.carried_states},
        [there.get(v) for v in halves.resident],
        [made[v] for v in halves.carried],
    )
