"""A schedule made ready to run: the op of each run, whether it keeps its bundle, what it frees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from schedsim.allocators.recorded_requests import saving_runs
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.copies import parse_copy
from schedsim.dataflow.graph import DEVICE, Graph
from schedsim.errors import InvalidScheduleError
from schedsim.simulation.result import Simulation
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

_TENSOR = re.compile(r"([ard])(\d+)(?:\.(\d+|loss))?(@host)?")

GRADIENT = "g"
"""Begins the names of parameter gradients, which autograd keeps."""

Tensor = tuple[str, int, int]
"""``("a", j, -1)`` is value j, ``("r", j, -1)`` the bundle of part j - 1, ``("d", j, i)`` the
gradient of value j from part i (L: from the loss). In host memory: ``("a@", j, -1)``,
``("r@", j, -1)``."""


@dataclass(frozen=True, slots=True)
class BlockRun:
    """One run of an op.

    Attributes
    ----------
    name, kind, index
        ``F3`` is (``"F3"``, ``"F"``, 3); the loss has kind ``"loss"``; a copy back of ``a4`` has
        kind ``"h2d"`` and index 4, and copies ``moves``.
    saves
        Whether the run is a forward whose bundle is read.
    first, last
        Whether the run is the first, the last run of its op.
    frees
        Tensors that die at the end of the run.
    makers
        In a schedule with copies, the number of the run that made each of these tensors: another
        instance may have taken its place.
    moves
        The tensor that a copy copies; for ``a4`` it is ``("a", 4, -1)``.
    stays
        Whether what a forward with a bundle reads is there, unchanged, until its backward is over.
    ends_output
        Whether a backward is the last run that reads its block's output.
    idle
        Whether a forward comes behind the backward of its block, so that nothing needs it.
    """

    name: str
    kind: str
    index: int
    saves: bool
    first: bool
    last: bool
    frees: tuple[Tensor, ...]
    makers: tuple[int, ...] = ()
    moves: Tensor | None = None
    stays: bool = False
    ends_output: bool = False
    idle: bool = False


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """The runs of a schedule in the order in which they start, and where the loss stands in it."""

    runs: tuple[BlockRun, ...]
    loss_run: int
    has_copies: bool = False


def make_program(
    workload: Chain | Graph,
    schedule: Schedule,
    num_parts: int,
    capacities: Mapping[str, int] | None = None,
) -> BlockProgram:
    """The runs of `schedule`, with lifetimes by the rule that the simulator charges. O(runs).

    Parameters
    ----------
    workload
        The workload with the copies that the schedule runs, where it runs any.
    capacities
        By pool, the capacities within which these copies were planned: they decide which runs wait.

    Raises
    ------
    InvalidScheduleError
        The schedule is not legal on `workload`, or it runs the loss or a backward twice, which
        would add the gradients of parameters twice.
    """
    graph = workload.graph
    copying = not graph.one_stream
    simulation = simulate(workload, schedule, capacities if copying else None)
    names = schedule.names
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    idle: set[int] = set()
    for k, name in enumerate(names):
        if name[0] != "F" and ":" not in name and name in first:
            raise InvalidScheduleError(
                f"schedule[{k}]: {name} runs a second time, which adds its gradients twice",
                rule="once",
                run_index=k,
                op_name=name,
                hint="recompute forward ops alone",
            )
        if name[0] == "F" and f"B{name[1:]}" in first:
            idle.add(k)
            continue
        first.setdefault(name, k)
        last[name] = k
    if copying:
        return _with_copies(graph, simulation, num_parts)
    # The run that made the latest instance of each tensor, and the last run that reads it.
    maker: dict[str, int] = {}
    reader: dict[tuple[str, int], int] = {}
    read: list[set[tuple[str, int]]] = []  # the instances that each run reads
    for k, name in enumerate(names):
        if k in idle:
            read.append(set())
            continue
        op = graph.ops[graph.op_index(name)]
        read.append({(tensor, maker.get(tensor, -1)) for tensor in op.reads})
        for instance in read[k]:
            reader[instance] = k
        for tensor in op.writes:
            maker[tensor] = k
            reader[tensor, k] = k
    frees: list[list[Tensor]] = [[] for _ in names]
    for (tensor, _), k in reader.items():
        if tensor[0] == GRADIENT:
            continue
        frees[k].append(_parsed(tensor, num_parts))
    saving = saving_runs(names)
    runs = []
    for k, name in enumerate(names):
        kind, index = ("loss", num_parts) if name == "loss" else (name[0], int(name[1:]))
        ends = (first[name] == k, last[name] == k)
        until = last.get(f"B{index}", len(names))
        stays = k in saving and all(reader[instance] >= until for instance in read[k])
        dying = tuple(frees[k])
        run = BlockRun(name, kind, index, k in saving, *ends, dying, stays=stays, idle=k in idle)
        runs.append(replace(run, ends_output=kind == "B" and ("a", index + 1, -1) in dying))
    return BlockProgram(tuple(runs), names.index("loss"))


def _with_copies(graph: Graph, simulation: Simulation, num_parts: int) -> BlockProgram:
    """The runs in the order in which they start, and what is free before each next one starts."""
    names, arrays = simulation.run_names, graph.arrays
    tensors = zip(*(column.tolist() for column in simulation._instances[:3]), strict=True)
    made, freed, _ = simulation.instance_events
    here = arrays.tensor_pool[simulation._instances[0]] == arrays.pool_names.index(DEVICE)
    at, place = _issue_order(simulation.events.tolist(), names, set(freed[here].tolist()))
    number_of = {run: number for number, run in enumerate(at)}
    saved = {name for name in arrays.tensor_names if name[0] == "r" and "@" not in name}
    last_reads: set[tuple[str, int]] = set()  # a tensor, and the run that is the last to read it
    frees: list[list[tuple[Tensor, int]]] = [[] for _ in at]
    saving: set[int] = set()
    for i, (tensor, first, last) in enumerate(tensors):
        name = arrays.tensor_names[tensor]
        if made[i] < 0 or name[0] == GRADIENT or (last < 0 and name in saved):
            continue
        if last < 0:  # it is made, but no run reads it
            frees[number_of[first]].append((_parsed(name, num_parts), number_of[first]))
            continue
        last_reads.add((name, last))
        if name in saved and names[first][0] == "F":
            saving.add(first)
        if freed[i] < len(place):
            frees[place[freed[i]]].append((_parsed(name, num_parts), number_of[first]))
    # Parts that keep nothing but what they read and return still have a graph for their backward.
    bare = {run for run in saving_runs(names) if f"r{int(names[run][1:]) + 1}" not in saved}
    saving |= bare
    order = [names[run] for run in at]
    firsts = {name: k for k, name in reversed(list(enumerate(order)))}
    lasts = {name: k for k, name in enumerate(order)}
    runs = []
    for number, run in enumerate(at):
        name = names[run]
        moves = None
        copy = parse_copy(name)
        if copy is not None:
            kind, moves = copy.stream, _parsed(copy.tensor, num_parts)
            index = moves[1]
        else:
            kind, index = ("loss", num_parts) if name == "loss" else (name[0], int(name[1:]))
        ends = (firsts[name] == number, lasts[name] == number)
        dying = tuple(tensor for tensor, _ in frees[number])
        makers = tuple(maker for _, maker in frees[number])
        this = BlockRun(name, kind, index, run in saving, *ends, dying, makers, moves)
        ends_output = kind == "B" and (f"a{index + 1}", run) in last_reads
        runs.append(replace(this, ends_output=ends_output))
    return BlockProgram(tuple(runs), order.index("loss"), has_copies=True)


def _issue_order(
    events: list[int], names: list[str], freeing: set[int]
) -> tuple[list[int], list[int]]:
    """Runs in issue order; for each event, the last run that was issued up to it.

    The issue order is the order of starts, with one exception: a copy that starts while an op
    computes is issued before that op, because behind it the copy would wait for the op. The
    exception does not apply where memory is freed in between, which the copy may need.
    """
    moved: list[list[int]] = []  # groups of positions; the positions of copies go before the op's
    computing = -1  # the group of the op that is running; -1 for none
    for position, event in enumerate(events):
        run, starts = event // 2, event % 2 == 0
        if not starts:
            moved.append([position])
            if computing >= 0 and events[moved[computing][-1]] // 2 == run:
                computing = -1
        elif ":" in names[run] and computing >= 0:
            since = moved[computing][-1]
            if any(since < other < position for other in freeing):
                moved.append([position])
            else:
                moved[computing].insert(-1, position)
        else:
            moved.append([position])
            if ":" not in names[run]:
                computing = len(moved) - 1
    at: list[int] = []
    place = [0] * len(events)
    for position in (position for group in moved for position in group):
        if events[position] % 2 == 0:
            at.append(events[position] // 2)
        place[position] = len(at) - 1
    return at, place


def _parsed(tensor: str, num_parts: int) -> Tensor:
    match = _TENSOR.fullmatch(tensor)
    assert match is not None, tensor
    kind, value, consumer, host = match.groups()
    if host:
        return f"{kind}@", int(value), -1
    if kind != "d":
        return kind, int(value), -1
    if consumer is None:  # a line: the part after the value, or the loss
        return kind, int(value), int(value)
    return kind, int(value), num_parts if consumer == "loss" else int(consumer)
