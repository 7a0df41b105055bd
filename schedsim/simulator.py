"""The simulator: what a schedule costs, in bytes and seconds, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidScheduleError, UnsupportedError
from .graph import COMPUTE, DEVICE, Graph
from .schedule import Schedule
from .units import format_bytes, format_seconds

if TYPE_CHECKING:
    from .chain import Chain

CATEGORIES = (
    "static",
    "checkpoints",
    "saved",
    "gradients",
    "recompute",
    "transient",
    "workspace",
)
"""Groups of live bytes. Static: always resident. Checkpoints: kept tensors that something is
recomputed from. Saved: other forward tensors that a backward op reads. Gradients: outputs of loss
and backward. Recompute: outputs of repeated forward runs, the recompute working set. Transient:
forward tensors on their way to the next op. Workspace: temporary bytes of the running op."""

RUN_KINDS = ("forward", "recomputed", "loss", "backward")
"""Kinds of runs. Recomputed: a run of a forward op that is not its first."""


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor instance that is alive during some run.

    Attributes
    ----------
    name : str
    size_bytes : int
    category : str
        One of `CATEGORIES`.
    first_run, last_run : int
        It lives from the start of the one to the end of the other.
    """

    name: str
    size_bytes: int
    category: str
    first_run: int
    last_run: int


@dataclass(frozen=True)
class Simulation:
    """What happens when a schedule runs on a workload.

    Attributes
    ----------
    workload_name : str
    schedule : Schedule
    memory_bytes : (num_runs,) int64
        Bytes in use during each run: static, live instances, outputs and workspace.
    peak_bytes, peak_run : int
        The largest of them, and the first run that reaches it.
    peak_op : str
        Name of the op of that run.
    makespan_s, store_all_s : float
        Time of this step, and of the step that recomputes nothing.
    """

    workload_name: str
    schedule: Schedule
    memory_bytes: NDArray[np.int64]
    peak_bytes: int
    peak_run: int
    peak_op: str
    makespan_s: float
    store_all_s: float
    static_bytes: int
    _graph: Graph
    _runs: NDArray[np.int32]
    _instances: tuple[NDArray[Any], ...]
    _workspace: NDArray[np.int64]

    @property
    def overhead(self) -> float:
        """Extra time relative to store-all: makespan / store_all_s - 1."""
        return self.makespan_s / self.store_all_s - 1.0 if self.store_all_s else 0.0

    @property
    def num_runs(self) -> int:
        """Number of op runs."""
        return int(self._runs.size)

    @property
    def num_recomputed(self) -> int:
        """Number of runs beyond the first of each op."""
        return self.num_runs - self._graph.num_ops

    @property
    def run_s(self) -> NDArray[np.float64]:
        """Seconds that each run takes, ``(num_runs,)``."""
        return self._graph.arrays.op_time_s[self._runs]

    @cached_property
    def run_kinds(self) -> NDArray[np.uint8]:
        """What runs, ``(num_runs,)``: indices into `RUN_KINDS`."""
        phase = self._graph.arrays.op_phase[self._runs]
        again = np.ones(self.num_runs, dtype=bool)
        again[np.unique(self._runs, return_index=True)[1]] = False
        forward = np.where(again, RUN_KINDS.index("recomputed"), RUN_KINDS.index("forward"))
        loss, backward = RUN_KINDS.index("loss"), RUN_KINDS.index("backward")
        kinds = np.where(phase == 0, forward, np.where(phase == 1, loss, backward))
        return kinds.astype(np.uint8)

    @cached_property
    def timeline(self) -> dict[str, NDArray[np.int64]]:
        """Bytes per category during each run, ``(num_runs,)`` each.

        They add up to `memory_bytes`. An output that takes over its input's storage is charged
        only for what exceeds it.
        """
        from ._replay import live_bytes

        tensor, first, last, source, category = self._instances
        arrays = self._graph.arrays
        table: dict[str, NDArray[np.int64]] = {}
        for code, name in enumerate(CATEGORIES):
            if name == "static":
                table[name] = np.full(self.num_runs, self.static_bytes, dtype=np.int64)
            elif name == "workspace":
                table[name] = self._workspace
            else:
                chosen = category == code
                table[name] = live_bytes(
                    self.num_runs, tensor, first, last, source, chosen, arrays.tensor_bytes
                )
        return table

    def by_category(self, run: int | None = None) -> dict[str, int]:
        """Bytes per category during `run`; during the peak where none is given."""
        at = self._at(run)
        return {name: int(row[at]) for name, row in self.timeline.items()}

    def live_tensors(self, run: int | None = None) -> list[LiveTensor]:
        """The instances alive during `run` (the peak by default), largest first."""
        at = self._at(run)
        tensor, first, last, _, category = self._instances
        arrays = self._graph.arrays
        found = [
            LiveTensor(
                name=arrays.tensor_names[tensor[i]],
                size_bytes=int(arrays.tensor_bytes[tensor[i]]),
                category=CATEGORIES[category[i]],
                first_run=int(first[i]),
                last_run=int(last[i]),
            )
            for i in np.flatnonzero((first <= at) & (last >= at))
        ]
        return sorted(found, key=lambda item: -item.size_bytes)

    def _at(self, run: int | None) -> int:
        """The run meant: the peak for ``None``; negative ones count from the end."""
        return self.peak_run if run is None else range(self.num_runs)[run]

    def __str__(self) -> str:
        lines = [
            f"{self.workload_name}: {self.num_runs} runs, {self.num_recomputed} recomputed",
            f"  peak      {format_bytes(self.peak_bytes)} at run {self.peak_run} ({self.peak_op})",
        ]
        for name, size in self.by_category().items():
            if size:
                lines.append(f"    {name:<12}{format_bytes(size)}")
        lines.append(
            f"  makespan  {format_seconds(self.makespan_s)} "
            f"({self.overhead:+.2%} over store-all {format_seconds(self.store_all_s)})"
        )
        return "\n".join(lines)


def simulate(workload: Chain | Graph, schedule: Schedule) -> Simulation:
    """What `schedule` costs on `workload`, after checking that it is legal.

    An instance of a tensor lives from the start of the run that writes it to the end of the last
    run that reads it before its producer runs again. During a run, static bytes, every live
    instance, the outputs and the workspace are charged; nothing else is.

    Parameters
    ----------
    workload
        A chain (lowered to its graph) or a graph, all of it on the compute queue.
    schedule
        Op runs in order.

    Returns
    -------
    Simulation

    Raises
    ------
    InvalidScheduleError
        An op is unknown, an input is missing, a ``once`` op runs twice or an op never runs.
    UnsupportedError
        The graph uses several queues or memory pools.

    Notes
    -----
    O(runs + reads + writes) time and memory.

    Examples
    --------
    >>> from schedsim import Chain, Schedule, Stage, simulate
    >>> chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    >>> simulate(chain, Schedule.store_all(chain)).peak_bytes
    32
    >>> simulate(chain, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])).peak_bytes
    26
    """
    from ._replay import LEGAL, find_lifetimes, live_bytes

    graph = workload.graph
    _refuse_several_queues(graph)
    arrays = graph.arrays
    runs = schedule.bind(graph)
    code, run, item, tensor, first, last, source, category = find_lifetimes(
        runs,
        arrays.op_phase,
        arrays.op_once,
        arrays.read_start,
        arrays.read_tensor,
        arrays.write_start,
        arrays.write_tensor,
        arrays.tensor_producer,
        arrays.tensor_result,
        arrays.write_optional,
        arrays.write_takes_over,
        arrays.op_required,
        arrays.op_copy,
    )
    if code != LEGAL:
        raise _illegal(graph, runs, int(code), int(run), int(item))
    everything = np.ones(tensor.size, dtype=np.bool_)
    memory = live_bytes(runs.size, tensor, first, last, source, everything, arrays.tensor_bytes)
    saves = np.zeros(runs.size, dtype=np.bool_)
    saves[first[arrays.tensor_optional[tensor] & (last >= 0)]] = True
    workspace = np.where(
        saves, arrays.op_saving_workspace_bytes[runs], arrays.op_workspace_bytes[runs]
    )
    memory += workspace
    memory += graph.static_bytes
    memory.setflags(write=False)
    peak_run = int(np.argmax(memory))
    counts = np.bincount(runs, minlength=graph.num_ops)
    return Simulation(
        workload_name=graph.name,
        schedule=schedule,
        memory_bytes=memory,
        peak_bytes=int(memory[peak_run]),
        peak_run=peak_run,
        peak_op=graph.op_names[runs[peak_run]],
        makespan_s=math.fsum((counts * arrays.op_time_s).tolist()),
        store_all_s=graph.store_all_s,
        static_bytes=graph.static_bytes,
        _graph=graph,
        _runs=runs,
        _instances=(tensor, first, last, source, category),
        _workspace=workspace,
    )


def _refuse_several_queues(graph: Graph) -> None:
    for op in graph.ops:
        if op.queue != COMPUTE:
            what = f"op {op.name!r} runs on queue {op.queue!r}"
        elif any(pool != DEVICE for pool in op.pools.values()):
            what = f"op {op.name!r} writes outside the device pool"
        else:
            continue
        raise UnsupportedError(
            f"{what}; only the {COMPUTE!r} queue and the {DEVICE!r} pool are simulated",
            hint="offloading is not simulated by this version: leave copies out of the graph",
        )


def _illegal(
    graph: Graph, runs: NDArray[np.int32], code: int, run: int, item: int
) -> InvalidScheduleError:
    from ._replay import MISSING_INPUT, RUN_TWICE

    if code == MISSING_INPUT:
        op_name = graph.op_names[runs[run]]
        tensor = graph.arrays.tensor_names[item]
        producer = graph.op_names[int(graph.arrays.tensor_producer[item])]
        return InvalidScheduleError(
            f"schedule[{run}]: {op_name} reads {tensor}, which does not exist yet",
            rule="missing input",
            run_index=run,
            op_name=op_name,
            hint=f"{producer} writes it: run {producer} first",
        )
    op_name = graph.op_names[item]
    if code == RUN_TWICE:
        return InvalidScheduleError(
            f"schedule[{run}]: {op_name} runs a second time, but is marked once",
            rule="once",
            run_index=run,
            op_name=op_name,
            hint="it has an effect that must not be repeated: keep its outputs instead",
        )
    return InvalidScheduleError(
        f"schedule: {op_name} never runs",
        rule="required op",
        run_index=None,
        op_name=op_name,
        hint="every op of the step must run at least once",
    )
