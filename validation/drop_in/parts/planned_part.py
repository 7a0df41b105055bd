"""A part of a step as a workload: its graph, and what a call by one of its schedules costs.

Planners read this alone; how the part runs is in `traced_part`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from schedsim import Graph, Schedule
from schedsim.dataflow.run_once import with_once
from schedsim.simulation.simulator import memory_at_sizes

from ...capture.program import Program, generator_states_bytes
from ...capture.to_graph import to_graph
from ...capture.varying_sizes import numbers_of, settled_program
from ...costs import device_costs
from ...torch_private.given_gradients import are_held
from ...torch_private.prompt_messages import silent_messages
from .joint_part import GivenGradient, JointPart
from .output_uses import OutputUse, PartOutputs
from .part_line import PartCost
from .part_sizes import Binding, Bytes, PartSizes
from .schedule_trust import ScheduleTrust
from .written_buffers import WrittenBuffers, readers

_MOST_COSTS = 4096
_NEVER_BYTES = 2**53


class _MeasuredAt(NamedTuple):
    """A program at some sizes, for code that measures it."""

    program: Program
    backend: str


class PlannedPart:
    """The part of a step that one graph of Dynamo is.

    Sizes that Dynamo left open differ from call to call; a *binding* holds their numbers. Bytes and
    costs are evaluated for a binding.

    Parameters
    ----------
    joint
        Both halves as AOTAutograd has traced them.
    program
        The program that runs: of `joint`, or the same one in groups.
    name
        The name of the workload.
    keep
        Patterns of ops that run once.
    lacking
        Outputs for which the backward was traced without a gradient: none will come.

    Attributes
    ----------
    program
        The program; open sizes are formulas in it.
    sizes : PartSizes
        Bytes by binding.
    graph : Graph
        The graph at the sizes measured last, without static bytes; the op ``outside`` stands for
        all code between the halves.
    schedules : list of Schedule
        Schedules by number; calls in flight may use any of them.
    trust : ScheduleTrust
        Which of them may run.
    outputs : PartOutputs
        The outputs as tensors of the graph.
    use : OutputUse
        What the loop does with the outputs: nothing that takes less memory, until steps tell.
    makes_zeros
        Whether gradients that do not come are there as zeros.
    buffers : WrittenBuffers
        Which of its buffers code behind the part is taken to write before its backward.
    """

    def __init__(
        self,
        joint: JointPart,
        program: Program,
        name: str,
        keep: Sequence[str] = (),
        lacking: Container[int] = (),
    ) -> None:
        self.name, self.device, self.program = name, joint.device, program
        self._joint, self._keep, self._lacking = joint, keep, lacking
        self.seed_name = program.calls[program.seed].name
        self.sizes = PartSizes(program, joint.open_sizes)
        self.outputs = PartOutputs(program, self.seed_name)
        without = (i for i, it in enumerate(joint.given) if it.output in lacking)
        self._lacking_names = self.outputs.lacking_names(OutputUse(lacking=frozenset(without)))
        self.buffers = WrittenBuffers(joint.doubted)
        self.buffers.tell(self._note_buffers)
        self.graph: Graph = self._graph_at(self.sizes.traced)[1]
        self.schedules: list[Schedule] = []
        self.trust = ScheduleTrust()
        self.use = OutputUse()
        self.makes_zeros = True
        self._is_use_seen = False
        self._hopes = False
        self._used_graphs: dict[OutputUse, Graph] = {}
        self._costs: dict[tuple[int, Binding], PartCost] = {}
        self._sums: dict[str, Any] = {}
        self._quickest: list[int] = []
        self._costed_as: Graph | None = None  # whose costs the ops have, if they are another part's

    # -- its ops and their costs ------------------------------------------------------------------

    def _graph_at(self, binding: Binding) -> tuple[Program, Graph]:
        program = settled_program(self.program, self.sizes.named(binding))
        graph = to_graph(program, self.name, 0)
        if are_held():
            graph = _given_to_the_end(graph, self.seed_name, self._lacking_names)
        return program, self._with_once(graph, program)

    def _with_once(self, graph: Graph, program: Program) -> Graph:
        """`graph` with the ops running once that the user names, or that read what is written."""
        names = self._readers(self.buffers.taken)
        names |= {call.name for call in program.calls if call.once}
        ops = tuple(replace(op, once=op.name in names) for op in graph.ops)
        return with_once(replace(graph, ops=ops), self._keep)

    def _readers(self, places: frozenset[int]) -> frozenset[str]:
        """Names of the ops of the forward that read the arguments at these places."""
        return readers(self.program, {self._joint.inputs[i] for i in places})

    def share_buffers(self, other: PlannedPart) -> None:
        """Take the same buffers to be written as `other`, the same part in other groups."""
        self.buffers = other.buffers
        self.buffers.tell(self._note_buffers)
        self._note_buffers()

    def _note_buffers(self) -> None:
        self.graph = self._with_once(self.graph, self.program)
        self.sizes.measured = {
            binding: one._replace(graph=self._with_once(one.graph, self.program))
            for binding, one in self.sizes.measured.items()
        }
        self._note_new_op_costs()

    def measure(self, binding: Binding) -> None:
        """Measure times and workspaces of the ops at these sizes, once."""
        if binding in self.sizes.measured:
            return
        program, graph = self._graph_at(binding)
        with silent_messages():  # other ranks need not measure now
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
        self._note_new_op_costs()

    @property
    def is_measured(self) -> bool:
        """Whether the part was measured, at any sizes."""
        return bool(self.sizes.measured)

    def cost_as(self, other: PlannedPart, alike: Mapping[str, str] | None = None) -> None:
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
            self._note_new_op_costs()
        self._costed_as = other.graph

    def _note_new_op_costs(self) -> None:
        """Evaluate schedules anew: the costs of ops are others."""
        self._costs.clear()
        self._quickest.clear()
        self._used_graphs.clear()
        self._costed_as = None

    def evaluate_again(self) -> None:
        """Evaluate costs anew: another backward may run."""
        self._costs.clear()

    # -- what the loop does with its outputs ------------------------------------------------------

    def learn_use(self, use: OutputUse) -> bool:
        """A step has used the outputs so; whether plans must change."""
        known, self._is_use_seen = self._is_use_seen, True
        return self._set_use(use.common(self.use) if known else use)

    def guess_use(self, gone: frozenset[int] = frozenset()) -> bool:
        """Plan for the use that takes least, until a step has told; whether that is another.

        Parameters
        ----------
        gone
            Numbers of held outputs that are known to be dropped.
        """
        guess = self.outputs.guess()
        guess = OutputUse(guess.dropped | gone, frozenset() if self.makes_zeros else guess.lacking)
        return not self._is_use_seen and self._set_use(guess)

    @contextmanager
    def hoping(self) -> Iterator[None]:
        """Take gradients that lack to be no zeros, before a backward has told which lack."""
        self._hopes = not self._is_use_seen
        self._costs.clear()
        try:
            yield
        finally:
            self._hopes = False
            self._costs.clear()

    def guess_held(self) -> None:
        """Plan for outputs that the loop holds to the end, until a step has told."""
        if not self._is_use_seen:
            self._set_use(OutputUse())

    def learn_dropped(self, dropped: frozenset[int]) -> None:
        """Another part, whose backward this one may run, has these outputs dropped."""
        self._set_use(self.use._replace(dropped=dropped))

    def uses_as(self, other: PlannedPart) -> None:
        """Plan for the use of the outputs that was learnt for `other`."""
        self._is_use_seen = other._is_use_seen
        self._set_use(other.use)

    def _set_use(self, use: OutputUse) -> bool:
        if use == self.use:
            return False
        self.use = use
        self._costs.clear()
        self._sums.clear()
        return True

    @property
    def given(self) -> tuple[GivenGradient, ...]:
        """The gradients for which the backward was traced."""
        return self._joint.given

    @property
    def has_known_gradients(self) -> bool:
        """Whether each gradient belongs to an output, and no size is open."""
        given = self._joint.given
        return not self.sizes.names and all(it.output >= 0 and it.shape is not None for it in given)

    # -- its bytes --------------------------------------------------------------------------------

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
        use = self.use._replace(lacking=frozenset()) if zeros else self.use
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

    @cached_property
    def trained_positions(self) -> list[int]:
        """Those of them that the backward gives gradients."""
        return [i for i in self.fixed_positions if self._joint.gradients[i] >= 0]

    @cached_property
    def derived_positions(self) -> list[int]:
        """Positions of the other arguments that the backward gives gradients."""
        fixed = set(self.fixed_positions)
        return [i for i, v in enumerate(self._joint.gradients) if v >= 0 and i not in fixed]

    @property
    def sums(self) -> frozenset[int]:
        """Positions of the arguments whose gradients are sums of several."""
        return self._joint.sums

    @property
    def casts(self) -> frozenset[int]:
        """Positions of the parameters whose gradients are cast to their type."""
        return self._joint.casts

    def inputs_among(self, arguments: Sequence[Any]) -> list[Any]:
        """Those of the `arguments` that are neither parameters nor buffers."""
        return [arguments[i] for i in self._input_positions if i < len(arguments)]

    @cached_property
    def _input_positions(self) -> list[int]:
        fixed = set(self.fixed_positions)
        return [i for i in range(len(self._joint.inputs)) if i not in fixed]

    # -- its schedules, and what they cost --------------------------------------------------------

    def add(self, schedule: Schedule) -> int:
        """Add `schedule`, by which calls can run from now on; returns its number."""
        for number, known in enumerate(self.schedules):
            if known == schedule:
                return number
        self.schedules.append(schedule)
        return len(self.schedules) - 1

    def mark(self, number: int) -> int:
        """The schedule `number` as one number, which tells small groups from large ones."""
        return number

    def store_all_cost(self, binding: Binding = ()) -> PartCost:
        """The cost of the part by the schedule that recomputes nothing."""
        return self.cost(self.add(Schedule.store_all(self.graph)), binding)

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
        counts = np.bincount(runs, minlength=graph.num_ops)
        written = [graph.op_index(it) for it in self._readers(self.buffers.written)]
        if (counts[written] > 1).any():
            return PartCost(number, _NEVER_BYTES, _NEVER_BYTES, _NEVER_BYTES, math.inf)
        memory = self._memory(number, binding, self.use)
        backward_bytes = int(memory[at:].max())
        if self.use.lacking:
            backward_bytes = max(int(memory[at]), self._backward_without(number, binding))
        given = self.given_bytes(binding)
        kept = int(memory[at]) - given - self.input_bytes(binding)
        times = counts * graph.arrays.op_time_s
        return PartCost(
            number,
            kept,
            int(memory[: at + 1].max()) - given if at == 0 else int(memory[:at].max()),
            backward_bytes,
            math.fsum(times.tolist()),
        )

    def compared_bytes(self, number: int, binding: Binding, lacking: frozenset[int]) -> int:
        """The peak of both halves by schedule `number` where nobody holds the outputs.

        Parameters
        ----------
        lacking
            Gradients that do not come, if the backward runs without them.
        """
        if lacking:
            cost = self.cost(number, binding)
            return max(cost.forward_bytes, cost.backward_bytes)
        dropped = OutputUse(frozenset(range(len(self.program.held))))
        return int(self._memory(number, binding, dropped).max())

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
        taken = self._taken_without(number)
        if taken is None and self._hopes:
            return int(self._memory(number, binding, self.use)[self._runs(number)[1] :].max())
        if taken is None:
            return self.own_backward_bytes(number, binding)
        other, at = taken
        return other.cost(at, binding).backward_bytes

    def _taken_without(self, _number: int) -> tuple[PlannedPart, int] | None:
        """The part and the number of its schedule that run where gradients lack as in `use`."""
        return None

    def own_backward_bytes(self, number: int, binding: Binding = ()) -> int:
        """The peak of the backward by schedule `number`, with zeros for gradients that lack."""
        memory = self._memory(number, binding, self.use._replace(lacking=frozenset()))
        return int(memory[self._runs(number)[1] :].max())


def _given_to_the_end(graph: Graph, seed_name: str, but: Container[str] = ()) -> Graph:
    """`graph` with what its op `seed_name` writes, `but` some, there to the end."""
    given = graph.ops[graph.op_index(seed_name)].writes
    held = [name for name in given if name not in graph.results and name not in but]
    return replace(graph, results=(*graph.results, *held))


def _resized(graph: Graph, tensor_bytes: Bytes, workspace_bytes: Bytes) -> Graph:
    sizes = dict(zip(graph.arrays.tensor_names, tensor_bytes.tolist(), strict=True))
    ops = tuple(
        replace(op, writes={name: sizes[name] for name in op.writes}, workspace_bytes=workspace)
        for op, workspace in zip(graph.ops, workspace_bytes.tolist(), strict=True)
    )
    return replace(graph, ops=ops, inputs={name: sizes[name] for name in graph.inputs})
