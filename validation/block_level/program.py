"""A schedule made ready to run: what each run is, whether it keeps its bundle, what dies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schedsim.chain import Chain
from schedsim.errors import InvalidScheduleError
from schedsim.graph import Graph
from schedsim.schedule import Schedule
from schedsim.simulator import simulate

_TENSOR = re.compile(r"([ard])(\d+)(?:\.(\d+|loss))?")

Tensor = tuple[str, int, int]
"""``("a", j, -1)`` value j, ``("r", j, -1)`` the bundle of part j - 1, ``("d", j, i)`` the gradient
of value j from part i (L: from the loss)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an op.

    Attributes
    ----------
    name, kind, index
        ``F3`` is (``"F3"``, ``"F"``, 3); the loss has kind ``"loss"``.
    saves
        A forward whose bundle is read.
    first, last
        The first, the last run of its op.
    frees
        What dies at its end.
    """

    name: str
    kind: str
    index: int
    saves: bool
    first: bool
    last: bool
    frees: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The runs of a schedule, and where the loss stands among them."""

    runs: tuple[Run, ...]
    loss_run: int


def make_program(workload: Chain | Graph, schedule: Schedule, num_parts: int) -> Program:
    """The runs of `schedule`, with lifetimes by the rule that the simulator charges. O(runs).

    Raises
    ------
    InvalidScheduleError
        The schedule is not legal on `workload`, or runs the loss or a backward twice, which would
        add its parameters' gradients twice.
    """
    simulate(workload, schedule)
    graph = workload.graph
    names = schedule.names
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, name in enumerate(names):
        if name[0] != "F" and name in first:
            raise InvalidScheduleError(
                f"schedule[{k}]: {name} runs a second time, which adds its gradients twice",
                rule="once",
                run_index=k,
                op_name=name,
                hint="recompute forward ops alone",
            )
        first.setdefault(name, k)
        last[name] = k
    # The run that made the latest instance of each tensor, and the last run that reads it.
    maker: dict[str, int] = {}
    reader: dict[tuple[str, int], int] = {}
    for k, name in enumerate(names):
        op = graph.ops[graph.op_index(name)]
        for tensor in op.reads:
            reader[tensor, maker.get(tensor, -1)] = k
        for tensor in op.writes:
            maker[tensor] = k
            reader[tensor, k] = k
    frees: list[list[Tensor]] = [[] for _ in names]
    for (tensor, _), k in reader.items():
        frees[k].append(_parsed(tensor, num_parts))
    saving = _saving_runs(names)
    runs = []
    for k, name in enumerate(names):
        kind, index = ("loss", num_parts) if name == "loss" else (name[0], int(name[1:]))
        ends = (first[name] == k, last[name] == k)
        runs.append(Run(name, kind, index, k in saving, *ends, tuple(frees[k])))
    return Program(tuple(runs), names.index("loss"))


def _saving_runs(names: list[str]) -> set[int]:
    """The runs of forwards whose bundle a backward reads: the last before it."""
    owed: set[str] = set()
    saving = set()
    for k in range(len(names) - 1, -1, -1):
        name = names[k]
        if name[0] == "B":
            owed.add(f"F{name[1:]}")
        elif name in owed:
            owed.remove(name)
            saving.add(k)
    return saving


def _parsed(tensor: str, num_parts: int) -> Tensor:
    match = _TENSOR.fullmatch(tensor)
    assert match is not None, tensor
    kind, value, consumer = match.groups()
    if kind != "d":
        return kind, int(value), -1
    if consumer is None:  # a line: the part after the value, or the loss
        return kind, int(value), int(value)
    return kind, int(value), num_parts if consumer == "loss" else int(consumer)
