"""A part of a step, traced by Dynamo, at run time: both halves run by one of its schedules."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch

from schedsim import Graph, Schedule
from schedsim.dataflow.run_once import with_once
from schedsim.simulation.simulator import memory_at_sizes

from ..capture.program import Program, Ref, generator_states_bytes
from ..capture.to_graph import to_graph
from ..capture.varying_sizes import VaryingSize, numbers_of, settled_program
from ..compiled.baked_views import bake_views
from ..compiled.compile_step import (
    fused_where_it_works,
    narrower_where_it_works,
    without_gradients_where_it_works,
)
from ..compiled.direct_calls import call_directly
from ..costs import device_costs
from ..guards.backward_place import BackwardAutocast
from ..op_level.emit import Halves, emit
from ..op_level.random_replay import RandomReplay
from ..op_level.short_calls import call_shortly
from ..ranks.wrappers import bucket_bytes
from ..torch_private.given_gradients import are_held
from ..torch_private.op_modes import without_alias_checks
from .early_gradients import Bucket, EarlyGradients, Places, pieces_of
from .gradient_layouts import put_in_form
from .joint_part import GivenGradient, JointPart
from .output_uses import OutputUse, PartOutputs
from .part_line import PartCost
from .part_sizes import Binding, Bytes, PartSizes
from .schedule_check import ScheduleComparison, ScheduleTrust

if TYPE_CHECKING:
    from .gradient_layouts import GradientLayouts
    from .lacking_gradients import LackingGradients
    from .session import Session

_MOST_COSTS = 4096


class _MeasuredAt(NamedTuple):
    """A program at some sizes, for code that measures it."""

    program: Program
    backend: str


class TracedPart:
    """The object that AOTAutograd calls for one graph of Dynamo.

    Sizes that Dynamo left open differ from call to call; a *binding* holds their numbers. Bytes and
    costs are evaluated for a binding.

    Parameters
    ----------
    lacking
        Outputs for which the backward was traced without a gradient: none will come.
    program
        The program in groups, if it is to run by these.
    has_small_groups
        Whether they are small ones, in the place of the part that autograd calls.

    Attributes
    ----------
    name
        The name of its workload.
    program
        The program; open sizes are formulas in it.
    sizes : PartSizes
        Bytes by binding.
    graph : Graph
        The graph at the sizes measured last, without static bytes; the op ``outside`` stands for
        all code between the halves.
    schedules : list of Schedule
        Schedules by number; calls in flight may use any of them.
    run_counts
        Op -> number of runs in the last call.
    backward_place
        Where the backward was traced to run: within autocast or outside of it.
    trust : ScheduleTrust
        Which of the schedules may run.
    early
        How the gradients of the next call are given before its backward ends; ``None`` for at its
        end.
    outputs : PartOutputs
        The outputs as tensors of the graph.
    use : OutputUse
        What the loop does with the outputs: nothing that takes less memory, until steps tell.
    has_small_groups
        Whether it runs in small groups, in the place of the part that autograd calls.
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
        has_small_groups: bool = False,
    ) -> None:
        self.session, self.name, self.device = session, name, joint.device
        self.program: Program = joint.program
        if program is not None:
            self.program = program
        elif compiled:
            self.program = fused_where_it_works(joint.program, name, session.groups)
        # The same values and ops, called on the shortest way.
        self._code = (
            call_directly(bake_views(self.program)) if compiled else call_shortly(self.program)
        )
        self._joint, self._lacking = joint, lacking
        self.has_small_groups = has_small_groups
        self._small: TracedPart | None = None
        self._runs_small = False
        self.backward_place = BackwardAutocast()
        self.seed_name = self.program.calls[self.program.seed].name
        self.sizes = PartSizes(self.program, joint.open_sizes)
        self.outputs = PartOutputs(self.program, self.seed_name)
        without = (i for i, it in enumerate(joint.given) if it.output in lacking)
        self._lacking_names = self.outputs.lacking_names(OutputUse(lacking=frozenset(without)))
        self.graph: Graph = self._graph_at(self.sizes.traced)[1]
        self.schedules: list[Schedule] = []
        self._halves: list[Halves] = []
        self._numbers: list[Any] = []
        self._counts = [0] * self.graph.num_ops
        self._zeros = tuple(self._counts)
        self.trust = ScheduleTrust()
        self._costs: dict[tuple[int, Binding], PartCost] = {}
        self._sums: dict[str, Any] = {}
        self._quickest: list[int] = []
        self.use = OutputUse()
        self._is_use_seen = False
        self._used_graphs: dict[OutputUse, Graph] = {}
        self._costed_as: Graph | None = None  # whose costs the ops have, if they are another part's
        self.layouts: GradientLayouts | LackingGradients | None = None
        self.early: EarlyGradients | None = None
        # By the place of a call's header; nodes of the autograd graph hold them.
        self._early_calls: WeakValueDictionary[int, EarlyGradients] = WeakValueDictionary()
        self._pieces: dict[tuple[int, int], tuple[Halves, Places]] = {}
        self._returned = numbers_of(
            [it for it in joint.returned if isinstance(it, VaryingSize)], self.sizes.names
        )

    # -- in small groups --------------------------------------------------------------------------

    def with_small_groups(self) -> TracedPart | None:
        """The same part in groups that take less room, which runs in its place from now on.

        ``None`` if there are none. Their code is compiled once.
        """
        if self._small is None:
            program = narrower_where_it_works(
                self._joint.program, self.program, self.session.groups
            )
            if program is None:
                return None
            self._small = TracedPart(
                self.session,
                self._joint,
                self.name,
                compiled=True,
                lacking=self._lacking,
                program=program,
                has_small_groups=True,
            )
            self._small.backward_place = self.backward_place
            self._small.layouts = self.layouts
        self._runs_small = True
        self._small.uses_as(self)
        return self._small

    def take_back(self) -> None:
        """Run by large groups again; calls of the part in small groups may still be in flight."""
        self._runs_small = False

    def uses_as(self, other: TracedPart) -> None:
        """Plan for the use of the outputs that was learnt for `other`."""
        self._is_use_seen = other._is_use_seen
        self._set_use(other.use)

    @property
    def _present(self) -> TracedPart:
        """The part that runs where autograd calls this one."""
        return self._small if self._runs_small and self._small is not None else self

    # -- for gradients that lack ------------------------------------------------------------------

    def without_gradients(self, lacking: Collection[int]) -> TracedPart | None:
        """The same part for a backward without these gradients; ``None`` if it has no such form."""
        program = None
        if self.program is not self._joint.program:  # else inductor did not compile it
            program = without_gradients_where_it_works(
                self._joint.program, lacking, self.session.groups, narrow=self.has_small_groups
            )
        if program is None:
            return None
        return TracedPart(
            self.session,
            self._joint,
            self.name,
            compiled=True,
            lacking=[self.given[i].output for i in lacking],
            program=program,
        )

    def cost_as(self, other: TracedPart, alike: Mapping[str, str] | None = None) -> None:
        """Take the times and workspaces of the ops of `other`.

        Parameters
        ----------
        alike
            Names of ops of `other`, with those of this part's that they stand for, where they
            differ.
        """
        if other.graph is self._costed_as:
            return  # a backward asks each time
        known = {(alike or {}).get(op.name, op.name): op for op in other.graph.ops}
        ops = tuple(
            op
            if op.name not in known
            else replace(
                op,
                time_s=known[op.name].time_s,
                workspace_bytes=known[op.name].workspace_bytes,
            )
            for op in self.graph.ops
        )
        if ops != self.graph.ops:
            self.graph = replace(self.graph, ops=ops)
            self._forget_costs()
        self._costed_as = other.graph

    def _forget_costs(self) -> None:
        """Evaluate schedules anew: the costs of ops are others."""
        self._costs.clear()
        self._quickest.clear()
        self._used_graphs.clear()
        self._costed_as = None

    # -- as a workload ----------------------------------------------------------------------------

    def _graph_at(self, binding: Binding) -> tuple[Program, Graph]:
        program = settled_program(self.program, self.sizes.named(binding))
        graph = to_graph(program, self.name, 0)
        if are_held():
            graph = _given_to_the_end(graph, self.seed_name, self._lacking_names)
        return program, with_once(graph, self.session.options.keep)

    def measure(self, binding: Binding) -> None:
        """Measure times and workspaces of the ops at these sizes, once."""
        if binding in self.sizes.measured:
            return
        program, graph = self._graph_at(binding)
        costs = device_costs(_MeasuredAt(program, self.device), self.device)
        sizes = costs.size_bytes
        ops = tuple(
            replace(
                op,
                time_s=costs.time_s.get(op.name, 0.0),
                workspace_bytes=costs.workspace_bytes.get(op.name, 0),
                writes={name: sizes.get(name, size) for name, size in op.writes.items()},
            )
            for op in graph.ops
        )
        self.graph = replace(graph, ops=ops)
        self.sizes.note(binding, self.graph)
        self._forget_costs()

    @property
    def is_measured(self) -> bool:
        """Whether the part was measured, at any sizes."""
        return bool(self.sizes.measured)

    def learn_use(self, use: OutputUse) -> bool:
        """A step has used the outputs so; whether plans must change."""
        known, self._is_use_seen = self._is_use_seen, True
        return self._set_use(use.common(self.use) if known else use)

    def guess_use(self) -> bool:
        """Plan for the use that takes least, until a step has told; whether that is another."""
        guess = self.outputs.guess()
        if self.layouts is None:  # zeros are made for gradients that do not come
            guess = OutputUse(guess.dropped)
        return not self._is_use_seen and self._set_use(guess)

    def learn_dropped(self, dropped: frozenset[int]) -> None:
        """Another part, whose backward this one may run, has these outputs dropped."""
        self._set_use(OutputUse(dropped, self.use.lacking))

    def _set_use(self, use: OutputUse) -> bool:
        if use == self.use:
            return False
        self.use = use
        self._costs.clear()
        self._sums.clear()
        return True

    def workload(
        self,
        static_bytes: int,
        outside_bytes: int,
        binding: Binding = (),
        earlier_bytes: int = 0,
        *,
        zeros: bool = False,
    ) -> Graph:
        """The part beside `static_bytes`, with `outside_bytes` at the peak between its halves.

        At sizes other than the measured ones, bytes are evaluated, and times are the measured ones.
        Results of an earlier step, of `earlier_bytes`, are there until the code between the halves
        has run. With `zeros`, gradients that lack are there as zeros.
        """
        if binding in self.sizes.measured:
            graph = self.sizes.measured[binding].graph
        elif self.is_measured:
            graph = _resized(self.graph, *self.sizes.at(binding))
        else:
            graph = self.graph
        ops = tuple(
            replace(op, workspace_bytes=outside_bytes) if op.name == self.seed_name else op
            for op in graph.ops
        )
        graph = replace(
            graph, ops=ops, static_bytes=static_bytes + graph.static_bytes + self.states_bytes
        )
        use = OutputUse(self.use.dropped) if zeros else self.use
        return self.outputs.as_used(graph, use, earlier_bytes)

    @property
    def states_bytes(self) -> int:
        """Most bytes of generator states and the note on the call, beside the graph's own.

        And of the gradients that the caller holds where a backward starts at a number.
        """
        states = generator_states_bytes(self.program, self.device)
        return 8 * (1 + len(self.sizes.names)) + states + self.outputs.root_bytes

    def output_bytes(self, binding: Binding = ()) -> int:
        """Bytes of the outputs that the caller gets."""
        return self._bytes("output", self.program.held, binding)

    def given_bytes(self, binding: Binding = ()) -> int:
        """Bytes of the gradients that the caller gives for the outputs."""
        come = [v for i, v in enumerate(self.program.tangents) if i not in self.use.lacking]
        return self._bytes("given", come, binding)

    def input_bytes(self, binding: Binding = ()) -> int:
        """Bytes of the arguments that are neither parameters nor buffers."""
        return self._bytes("input", list(self.program.inputs.values()), binding)

    def input_gradient_bytes(self, binding: Binding = ()) -> int:
        """Bytes of the gradients of arguments, which the caller takes over."""
        values = list(self.program.input_gradients.values())
        return self._bytes("input gradient", values, binding)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of parameters, all of which exist after the backward half."""
        traced = self.sizes.traced
        return self._bytes("gradient", list(self.program.gradients.values()), traced)

    def _bytes(self, what: str, values: list[int], binding: Binding) -> int:
        if what not in self._sums:
            program = self.program
            storages = dict.fromkeys(program.values[v].storage for v in values)
            sizes = [program.storages[s].size_bytes for s in storages]
            self._sums[what] = numbers_of(sizes, self.sizes.names)
        return int(sum(self._sums[what](binding)))

    @cached_property
    def fixed_positions(self) -> list[int]:
        """Positions of the arguments that are parameters or buffers."""
        program = self.program
        return [
            i
            for i, v in enumerate(self._joint.inputs)
            if v >= 0 and program.storages[program.values[v].storage].kind == "static"
        ]

    def inputs_among(self, arguments: Sequence[Any]) -> list[Any]:
        """Those of the `arguments` that are neither parameters nor buffers."""
        return [arguments[i] for i in self._input_positions if i < len(arguments)]

    @cached_property
    def _input_positions(self) -> list[int]:
        fixed = set(self.fixed_positions)
        return [i for i in range(len(self._joint.inputs)) if i not in fixed]

    def cost(self, number: int, binding: Binding = ()) -> PartCost:
        """The cost of the part by schedule `number`, at the sizes of `binding`; O(runs)."""
        key = (number, binding)
        if key not in self._costs:
            if len(self._costs) > _MOST_COSTS:
                self._costs.clear()
            self._costs[key] = self._evaluated(number, binding)
        return self._costs[key]

    def _evaluated(self, number: int, binding: Binding) -> PartCost:
        graph, (runs, at) = self.graph, self._runs(number)
        memory = self._memory(number, binding, self.use)
        backward_bytes = int(memory[at:].max())
        if self.use.lacking:
            backward_bytes = max(int(memory[at]), self._backward_without(number, binding))
        given = self.given_bytes(binding)
        kept = int(memory[at]) - given - self.input_bytes(binding)
        times = np.bincount(runs, minlength=graph.num_ops) * graph.arrays.op_time_s
        return PartCost(
            number,
            kept,
            int(memory[: at + 1].max()) - given if at == 0 else int(memory[:at].max()),
            backward_bytes,
            math.fsum(times.tolist()),
        )

    def quickest_first(self) -> list[int]:
        """The numbers of the schedules, in the order of their measured times."""
        if len(self._quickest) != len(self.schedules):
            times = self.graph.arrays.op_time_s
            seconds = [
                math.fsum(times[schedule.bind(self.graph)].tolist()) for schedule in self.schedules
            ]
            self._quickest = sorted(range(len(seconds)), key=lambda number: seconds[number])
        return self._quickest

    def _runs(self, number: int) -> tuple[Any, int]:
        """The runs of schedule `number`, and the place of the code between the halves."""
        runs = self.schedules[number].bind(self.graph)
        return runs, int(np.flatnonzero(runs == self.graph.op_index(self.seed_name))[0])

    def _memory(self, number: int, binding: Binding, use: OutputUse) -> Any:
        """Bytes during each run of schedule `number`, if the loop uses the outputs so."""
        if use not in self._used_graphs:
            self._used_graphs[use] = self.outputs.as_used(self.graph, use)
        graph = self._used_graphs[use]
        tensors, workspaces = graph.arrays.tensor_bytes, graph.arrays.op_workspace_bytes
        if self.is_measured:
            tensors, workspaces = self.sizes.at(binding)
            lacking = self.outputs.lacking_names(use)
            if lacking:
                names = graph.arrays.tensor_names
                tensors = np.where([name in lacking for name in names], 0, tensors)
        schedule = self.schedules[number]
        return memory_at_sizes(graph, schedule, tensors, workspaces) + self.states_bytes

    def _backward_without(self, number: int, binding: Binding) -> int:
        """The peak of a backward for which gradients lack, as `use` says."""
        taken = None
        if self.layouts is not None:
            taken = self.layouts.taken_without(self, number, self.use.lacking)
        if taken is None:
            return self.own_backward_bytes(number, binding)
        other, at = taken
        return other.cost(at, binding).backward_bytes

    def own_backward_bytes(self, number: int, binding: Binding = ()) -> int:
        """The peak of the backward by schedule `number`, with zeros for gradients that lack."""
        memory = self._memory(number, binding, OutputUse(self.use.dropped))
        return int(memory[self._runs(number)[1] :].max())

    def forget_costs(self) -> None:
        """Evaluate costs anew: another backward may run."""
        self._costs.clear()

    def store_all_cost(self, binding: Binding = ()) -> PartCost:
        """The cost of the part by the schedule that recomputes nothing."""
        return self.cost(self.add(Schedule.store_all(self.graph)), binding)

    # -- as code ----------------------------------------------------------------------------------

    def code_of(self, schedule: Schedule) -> tuple[Halves, Any]:
        """The code of `schedule`, for `add`; may be made in another thread. O(runs)."""
        halves = emit(self._code, [int(run) for run in schedule.bind(self.graph)])
        return halves, numbers_of(halves.sizes, self.sizes.names)

    def add(self, schedule: Schedule, code: tuple[Halves, Any] | None = None) -> int:
        """Add `schedule`, by which calls can run from now on; returns its number."""
        for number, known in enumerate(self.schedules):
            if known == schedule:
                return number
        halves, numbers = code or self.code_of(schedule)
        self._halves.append(halves)
        self._numbers.append(numbers)
        self.schedules.append(schedule)
        return len(self.schedules) - 1

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The outputs, followed by what `backward` needs; `arguments` is emptied."""
        early, self.early = self.early, None
        found = dict(zip(self._joint.inputs, arguments, strict=True))
        binding = self.sizes.read(arguments)
        given = arguments if early is None else early.own(arguments)
        with without_alias_checks():  # measures the ops, and compares schedules
            number = self.session.forward_begins(self._present, given, binding)
            given.clear()
            arguments.clear()
            part = self._present  # plans may have put small groups in the place of large ones
            if self.session.checks:
                number = part._compared(number, found, binding)
            part.trust.meet(binding)
        return part._run_forward(number, binding, found, early)

    def _run_forward(
        self, number: int, binding: Binding, found: dict[int, Any], early: EarlyGradients | None
    ) -> list[Any]:
        """The forward by schedule `number`, on the arguments that were `found`."""
        halves, constants = self._halves[number], self.program.constants
        resident = [found[v] if v in found else constants[v] for v in halves.resident]
        found.clear()
        random = RandomReplay(len(halves.repeated_random), self.device)
        self._counts[:] = self._zeros
        sizes = self._numbers[number](binding)
        outputs, carried = halves.forward.function(resident, self._counts, random, None, sizes)
        made = dict(zip(self.program.outputs, outputs, strict=True))
        header = torch.tensor([~number if self.has_small_groups else number, *binding])
        self._early_calls.pop(header.data_ptr(), None)
        if early is not None:
            self._early_calls[header.data_ptr()] = early
        kept = [
            tensor
            for v, tensor in zip(halves.resident, resident, strict=True)
            if v in halves.read_backward and v not in constants
        ]
        states = [random.states[k] for k in halves.carried_states]
        held = [made[v] for v in self.program.held]
        self.session.forward_ends(self, held, header)
        del held
        numbers = iter(self._returned(binding))
        returned = [
            made[it.value]
            if isinstance(it, Ref)
            else next(numbers)
            if isinstance(it, VaryingSize)
            else it
            for it in self._joint.returned
        ]
        return [*returned, header, *states, *kept, *carried]

    def _compared(self, number: int, found: dict[int, Any], binding: Binding) -> int:
        """Compare the schedule `number` if it is new; returns the number of the schedule to run.

        And others that were made for sizes to come, of which no step is to wait then.
        """
        trust = self.trust
        comparison = ScheduleComparison(self, found, binding)
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

    @property
    def given(self) -> tuple[GivenGradient, ...]:
        """The gradients for which the backward was traced."""
        return self._joint.given

    @property
    def has_known_gradients(self) -> bool:
        """Whether each gradient belongs to an output, and no size is open."""
        given = self._joint.given
        return not self.sizes.names and all(it.output >= 0 and it.shape is not None for it in given)

    def halves_of(self, number: int) -> Halves:
        """The code of schedule `number`."""
        return self._halves[number]

    def sizes_of(self, number: int, binding: Binding) -> Any:
        """The numbers that this code gets for its open sizes."""
        return self._numbers[number](binding)

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The gradients of the arguments of `forward`; `arguments` is emptied."""
        with self.session.telling():
            small = self._small
            part = self if small is None or int(arguments[0][0]) >= 0 else small
            return part._backward(arguments)

    def _backward(self, arguments: list[Any]) -> list[Any]:
        num_given = len(self.program.tangents)
        given = arguments[len(arguments) - num_given :]
        del arguments[len(arguments) - num_given :]
        header = arguments.pop(0)
        number, *binding = header.tolist()
        number = ~number if self.has_small_groups else number
        self.session.backward_begins(self, header, given)
        mine, constants = self._halves[number], self.program.constants
        part, halves = self, mine
        if self.layouts is not None:
            part, halves = self.layouts.backward_of(self, number, given)
        else:
            put_in_form(given, self.given)
        states = {mine.repeated_random[k]: arguments.pop(0) for k in mine.carried_states}
        kept = {
            v: arguments.pop(0)
            for v in mine.resident
            if v in mine.read_backward and v not in constants
        }
        made = dict(zip(mine.carried, arguments, strict=True))
        arguments.clear()
        random = RandomReplay(len(halves.repeated_random), self.device)
        for k in halves.carried_states:
            random.states[k] = states[halves.repeated_random[k]]
        resident = [constants[v] if v in constants else kept.get(v) for v in halves.resident]
        carried = [made[v] for v in halves.carried]
        del states, kept, made
        sizes = self._numbers[number](binding)
        early = self._early_calls.get(header.data_ptr())
        places: Places = []
        if early is not None:
            halves, places = self._in_pieces(number, early.bucket_bytes)
        gradients = halves.backward.function(
            resident, carried, given, part._counts, random, None, sizes
        )
        if early is not None:
            return self._begun(early, header, gradients, places)
        found = part._by_argument(gradients)
        if part is not self:
            self._count(part)
        self.session.backward_ends(header, lambda: part._of_inputs(found))
        return found

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
        _, all_places = self._in_pieces(self.add(Schedule.store_all(self.graph)), num_bytes)
        buckets: list[Bucket] = [tuple(chain.from_iterable(places)) for places in all_places]
        later = [arguments[at] for bucket in buckets[1:] for at in bucket]
        if not later or any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in later):
            return None
        return EarlyGradients(buckets, arguments, num_bytes)

    def _in_pieces(self, number: int, num_bytes: int) -> tuple[Halves, Places]:
        """The code of schedule `number` with a backward in pieces, and whom each piece is for."""
        key = (number, num_bytes)
        if key not in self._pieces:
            runs = [int(run) for run in self.schedules[number].bind(self.graph)]
            halves = emit(self._code, runs, piece_bytes=num_bytes)
            self._pieces[key] = halves, self._places(halves)
        return self._pieces[key]

    def _places(self, halves: Halves) -> Places:
        at: dict[int, list[int]] = {}
        for position, v in enumerate(self._joint.gradients):
            at.setdefault(v, []).append(position)
        names = list(self.program.gradients.values())
        found = [[names[i] for i in delivery.gradients] for delivery in halves.deliveries]
        found[-1] += self.program.input_gradients.values()
        return [[at.get(v, []) for v in values] for values in found]

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

    def _of_inputs(self, gradients: list[Any]) -> list[torch.Tensor]:
        """Those of inputs among the `gradients` of all arguments."""
        inputs = set(self.program.input_gradients.values())
        rows = zip(self._joint.gradients, gradients, strict=True)
        return [gradient for v, gradient in rows if v in inputs and gradient is not None]

    def _count(self, other: TracedPart) -> None:
        """Add what the backward of `other` has run."""
        index = {name: i for i, name in enumerate(self.graph.op_names)}
        for name, count in other.run_counts.items():
            if name in index:
                self._counts[index[name]] += count
        other._counts[:] = [0] * len(other._counts)

    def _by_argument(self, found: list[Any]) -> list[Any]:
        """Gradients, in the order of the program, in that of the arguments."""
        program = self.program
        names = [*program.gradients.values(), *program.input_gradients.values()]
        gradients = dict(zip(names, found, strict=True))
        return [gradients.get(v) if v >= 0 else None for v in self._joint.gradients]

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last call; complete after its backward."""
        return dict(zip(self.graph.op_names, self._counts, strict=True))


def _given_to_the_end(graph: Graph, seed_name: str, but: Container[str] = ()) -> Graph:
    """`graph` with what its op `seed_name` writes, `but` some, read by the last op, too."""
    given, last = graph.ops[graph.op_index(seed_name)].writes, graph.ops[-1]
    held = [name for name in given if name not in last.reads and name not in but]
    reads = (*last.reads, *held)
    return replace(graph, ops=(*graph.ops[:-1], replace(last, reads=reads)))


def _resized(graph: Graph, tensor_bytes: Bytes, workspace_bytes: Bytes) -> Graph:
    sizes = dict(zip(graph.arrays.tensor_names, tensor_bytes.tolist(), strict=True))
    ops = tuple(
        replace(op, writes={name: sizes[name] for name in op.writes}, workspace_bytes=workspace)
        for op, workspace in zip(graph.ops, workspace_bytes.tolist(), strict=True)
    )
    return replace(graph, ops=ops, inputs={name: sizes[name] for name in graph.inputs})
