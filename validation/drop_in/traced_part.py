"""A part of a step, traced by Dynamo, at run time: both halves by one of its schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from schedsim import Graph, Schedule, simulate
from schedsim.dataflow.run_once import with_once

from ..capture.program import Program
from ..capture.to_graph import to_graph
from ..compiled.compile_step import fused_where_it_works
from ..costs import measured_costs
from ..op_level.emit import Halves, emit
from ..op_level.random_replay import RandomReplay
from .joint_part import JointPart
from .part_line import PartCost

if TYPE_CHECKING:
    from .session import Session


class TracedPart:
    """What AOTAutograd calls for one graph of Dynamo.

    Attributes
    ----------
    name
        Of its workload.
    program
    graph : Graph
        Without static bytes; the op ``outside`` stands for all that happens between the halves.
    schedules : list of Schedule
        Those that calls in flight may be of, by number.
    run_counts
        Op -> number of runs in the last call.
    """

    def __init__(self, session: Session, joint: JointPart, name: str) -> None:
        self.session, self.name, self.device = session, name, joint.device
        self.program: Program = joint.program
        if session.options.compile:
            self.program = fused_where_it_works(joint.program, name)
        self._joint = joint
        self.graph: Graph = with_once(to_graph(self.program, name, 0), session.options.keep)
        self.backend = joint.device
        self.is_measured = False
        self.schedules: list[Schedule] = []
        self._halves: list[Halves] = []
        self._counts = [0] * self.graph.num_ops
        self.seed_name = self.program.calls[self.program.seed].name

    # -- as a workload ----------------------------------------------------------------------------

    def measure(self) -> None:
        """Fill in times and workspaces of the ops, once."""
        if self.is_measured:
            return
        costs = measured_costs(self, self.device)
        sizes = costs.size_bytes
        ops = tuple(
            replace(
                op,
                time_s=costs.time_s.get(op.name, 0.0),
                workspace_bytes=costs.workspace_bytes.get(op.name, 0),
                writes={name: sizes.get(name, size) for name, size in op.writes.items()},
            )
            for op in self.graph.ops
        )
        self.graph = replace(self.graph, ops=ops)
        self.is_measured = True

    def workload(self, static_bytes: int, outside_bytes: int) -> Graph:
        """The part beside `static_bytes`, with `outside_bytes` at the peak between its halves."""
        ops = tuple(
            replace(op, workspace_bytes=outside_bytes) if op.name == self.seed_name else op
            for op in self.graph.ops
        )
        return replace(self.graph, ops=ops, static_bytes=static_bytes + self.states_bytes)

    @property
    def states_bytes(self) -> int:
        """At most, of generator states and the number of the schedule, beside the graph's own."""
        num_random = sum(call.random for call in self.program.calls)
        states = (num_random + 1) * torch.get_rng_state().numel() if num_random else 0
        return 8 + (states if self.device == "cpu" else 0)

    @property
    def output_bytes(self) -> int:
        """Of outputs that the caller gets."""
        return self._bytes(self.program.held)

    @property
    def given_bytes(self) -> int:
        """Of the gradients of outputs."""
        return self._bytes(self.program.tangents)

    def _bytes(self, values: list[int]) -> int:
        program = self.program
        storages = dict.fromkeys(program.values[v].storage for v in values)
        return sum(program.storages[s].size_bytes for s in storages)

    @property
    def input_bytes(self) -> int:
        """Of arguments that are no parameters or buffers."""
        return sum(self.graph.inputs.values())

    @property
    def gradient_bytes(self) -> int:
        """Of gradients of parameters, all of which the backward half leaves."""
        return self._bytes(list(self.program.gradients.values()))

    @property
    def fixed_positions(self) -> list[int]:
        """Of arguments that are parameters and buffers."""
        program = self.program
        kinds = [program.storages[program.values[v].storage].kind for v in self._joint.inputs]
        return [i for i, kind in enumerate(kinds) if kind == "static"]

    def cost(self, number: int) -> PartCost:
        """What it takes by schedule `number`."""
        graph, schedule = self.workload(0, 0), self.schedules[number]
        simulation = simulate(graph, schedule)
        memory = simulation.memory_bytes
        at = int(np.flatnonzero(np.array(simulation.run_names) == self.seed_name)[0])
        kept = int(memory[at]) - self.given_bytes - self.input_bytes
        return PartCost(
            number,
            kept,
            int(memory[: at + 1].max()) - self.given_bytes if at == 0 else int(memory[:at].max()),
            int(memory[at:].max()),
            simulation.makespan_s,
        )

    # -- as code ----------------------------------------------------------------------------------

    def add(self, schedule: Schedule) -> int:
        """The number of `schedule`, which calls can be run by from now on."""
        for number, known in enumerate(self.schedules):
            if known == schedule:
                return number
        runs = [int(run) for run in schedule.bind(self.graph)]
        self._halves.append(emit(self.program, runs))
        self.schedules.append(schedule)
        return len(self.schedules) - 1

    def forward(self, arguments: list[Any]) -> list[Any]:
        """The outputs, and after them what `backward` needs; `arguments` is emptied."""
        found = dict(zip(self._joint.inputs, arguments, strict=True))
        number = self.session.forward_begins(self, arguments)
        arguments.clear()
        halves, constants = self._halves[number], self.program.constants
        resident = [found[v] if v in found else constants[v] for v in halves.resident]
        del found
        random = RandomReplay(len(halves.repeated_random), self.device)
        for i in range(len(self._counts)):
            self._counts[i] = 0
        outputs, carried = halves.forward.function(resident, self._counts, random, None)
        made = dict(zip(self.program.outputs, outputs, strict=True))
        header = torch.tensor(number)
        kept = [
            tensor
            for v, tensor in zip(halves.resident, resident, strict=True)
            if v in halves.read_backward and v not in constants
        ]
        states = [random.states[k] for k in halves.carried_states]
        held = [made[v] for v in self.program.held]
        self.session.forward_ends(self, held, header)
        del held
        returned = [made[v] if v >= 0 else None for v in self._joint.returned]
        return [*returned, header, *states, *kept, *carried]

    def backward(self, arguments: list[Any]) -> list[Any]:
        """The gradients of the arguments of `forward`; `arguments` is emptied."""
        num_given = len(self.program.tangents)
        given = arguments[len(arguments) - num_given :]
        del arguments[len(arguments) - num_given :]
        header = arguments.pop(0)
        number = int(header)
        self.session.backward_begins(self, header)
        halves, constants = self._halves[number], self.program.constants
        random = RandomReplay(len(halves.repeated_random), self.device)
        for k in halves.carried_states:
            random.states[k] = arguments.pop(0)
        resident: list[Any] = []
        for v in halves.resident:
            if v in constants:
                resident.append(constants[v])
            else:
                resident.append(arguments.pop(0) if v in halves.read_backward else None)
        carried = list(arguments)
        arguments.clear()
        found = halves.backward.function(resident, carried, given, self._counts, random, None)
        program = self.program
        names = [*program.gradients.values(), *program.input_gradients.values()]
        gradients = dict(zip(names, found, strict=True))
        del found
        self.session.backward_ends(self, header)
        return [gradients.get(v) if v >= 0 else None for v in self._joint.gradients]

    @property
    def run_counts(self) -> dict[str, int]:
        """Op -> number of runs in the last call; complete after its backward."""
        return dict(zip(self.graph.op_names, self._counts, strict=True))
