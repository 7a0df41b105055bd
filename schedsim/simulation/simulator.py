"""The simulator: what a schedule costs, in bytes and seconds, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataflow.arrays import GraphArrays
from ..dataflow.graph import Graph
from ..dataflow.streams import compute_stream_of
from ..errors import InvalidScheduleError, InvalidWorkloadError
from .categories import CATEGORIES, RUN_KINDS
from .result import LiveTensor, Simulation
from .schedule import Schedule

if TYPE_CHECKING:
    from ..dataflow.chain import Chain

__all__ = ["CATEGORIES", "RUN_KINDS", "LiveTensor", "Simulation", "simulate"]


def simulate(
    workload: Chain | Graph,
    schedule: Schedule,
    capacities: Mapping[str, int] | None = None,
    *,
    run_s: NDArray[np.float64] | None = None,
) -> Simulation:
    """The cost of `schedule` on `workload`, after a check that the schedule is legal.

    An instance of a tensor lives from the start of the run that writes it to the end of the last
    run that reads it before it is written again. During a run, static bytes, every live
    instance, the outputs and the workspace are charged; nothing else is. Schedules on several
    streams are simulated event by event: see `schedsim.simulation.engine` for when a run starts.

    Parameters
    ----------
    workload
        A chain (lowered to its graph) or a graph.
    schedule
        Op runs in order; each stream runs its own ops in that order.
    capacities
        Memory pool -> bytes: a run waits until its memory fits. A pool without a capacity, as all
        pools are by default, holds whatever the schedule puts there.
    run_s
        Seconds of each run of a graph with several streams, ``(num_runs,)``, where they are not
        those of its op.

    Returns
    -------
    Simulation

    Raises
    ------
    InvalidScheduleError
        An op is unknown, an input is missing, a ``once`` op runs twice or an op never runs.
    DeadlockError
        No run can start any more within the capacities; the error says which runs wait for which,
        and which tensors hold the memory.

    Notes
    -----
    O(runs + reads + writes) time and memory. On several streams the time grows by a factor
    log(streams), and by more where many runs wait for memory.

    Examples
    --------
    >>> from schedsim import Chain, Schedule, Stage, simulate
    >>> chain = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 10)))
    >>> simulate(chain, Schedule.store_all(chain)).peak_bytes
    32
    >>> simulate(chain, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])).peak_bytes
    26
    """
    graph = workload.graph
    arrays = graph.arrays
    runs = schedule.bind(graph).copy()  # kernels take arrays that may be written
    if capacities is not None or not graph.one_stream:
        instances, _ = _replayed(graph, runs, arrays)
        return _on_several_streams(graph, schedule, runs, instances, capacities, run_s)
    assert run_s is None, "runs on one stream take the seconds of their ops"
    instances, memory, workspace = _on_one_stream(graph, arrays, runs)
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
        peak_by_pool={"device": int(memory[peak_run])},
        _graph=graph,
        _runs=runs,
        _instances=instances,
        _workspace=workspace,
    )


def memory_at_sizes(
    graph: Graph,
    schedule: Schedule,
    tensor_bytes: NDArray[np.int64],
    workspace_bytes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Bytes during each run of `schedule` if tensors and workspaces had other sizes.

    The result is that of `simulate` on a graph of the same ops with these sizes, but no such graph
    is built: the memory of a schedule at the sizes of another batch takes one pass over its runs.

    Parameters
    ----------
    tensor_bytes
        In the order of ``graph.arrays.tensor_names``.
    workspace_bytes
        In the order of the ops; the same for every run of an op, whatever the run materialises.

    Raises
    ------
    InvalidScheduleError
        As `simulate` raises it.
    InvalidWorkloadError
        The graph has several streams.

    Notes
    -----
    O(runs + reads + writes).
    """
    if not graph.one_stream:
        raise InvalidWorkloadError("it has several streams", path=graph.name)
    arrays = replace(
        graph.arrays,
        tensor_bytes=np.ascontiguousarray(tensor_bytes, np.int64),
        op_workspace_bytes=np.ascontiguousarray(workspace_bytes, np.int64),
        op_saving_workspace_bytes=np.ascontiguousarray(workspace_bytes, np.int64),
    )
    return _on_one_stream(graph, arrays, schedule.bind(graph).copy())[1]


def _on_one_stream(
    graph: Graph, arrays: GraphArrays, runs: NDArray[np.int32]
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.int64], NDArray[np.int64]]:
    """Instances, bytes during each run, and the workspace that these bytes include."""
    instances, memory = _replayed(graph, runs, arrays, with_memory=True)
    tensor, first, last, *_ = instances
    workspace = arrays.op_workspace_bytes.take(runs)
    if arrays.saving_differs:
        saves = np.zeros(runs.size, dtype=np.bool_)
        saves[first[arrays.tensor_optional[tensor] & (last >= 0)]] = True
        workspace = np.where(saves, arrays.op_saving_workspace_bytes.take(runs), workspace)
    memory += workspace
    memory += graph.static_bytes
    return instances, memory, workspace


def _replayed(
    graph: Graph,
    runs: NDArray[np.int32],
    arrays: GraphArrays,
    *,
    with_memory: bool = False,
) -> tuple[tuple[NDArray[Any], ...], NDArray[np.int64]]:
    """Instances of legal runs as (tensor, first, last, source, category), and bytes by run."""
    from ..kernels.compiled import run
    from ._replay import LEGAL, replay_runs

    num_inputs = len(graph.inputs)
    num_instances = num_inputs + int(arrays.num_writes.take(runs).sum())
    instances = np.empty((4, num_instances), np.int32)
    category = np.empty(num_instances, np.int8)
    latest = np.full(arrays.tensor_bytes.size, -1, np.int64)
    count = np.zeros(graph.num_ops, np.int32)
    memory = np.zeros(runs.size + 1 if with_memory else 0, np.int64)
    outcome = np.zeros(3, np.int64)
    steps = runs.size + 2 * num_instances + graph.num_ops
    run(replay_runs, steps, arrays, runs, instances, category, latest, count, memory, outcome)
    code, at, item = outcome.tolist()
    if code != LEGAL:
        raise _illegal(graph, runs, code, at, item)
    return (*instances, category), memory[:-1]


def _on_several_streams(
    graph: Graph,
    schedule: Schedule,
    runs: NDArray[np.int32],
    instances: tuple[NDArray[Any], ...],
    capacities: Mapping[str, int] | None,
    run_s: NDArray[np.float64] | None,
) -> Simulation:
    from .engine import play_streams

    course = play_streams(graph, runs, instances, capacities, run_s)
    for array in (course.memory, course.start_s, course.end_s):
        array.setflags(write=False)
    pools = graph.arrays.pool_names
    devices = [number for number, pool in enumerate(pools) if compute_stream_of(pool)]
    fullest = max(devices, key=lambda number: int(course.peak[number]))
    peak_run = int(course.peak_run[fullest])
    return Simulation(
        workload_name=graph.name,
        schedule=schedule,
        memory_bytes=course.memory,
        peak_bytes=int(course.peak[fullest]),
        peak_run=peak_run,
        peak_op=graph.op_names[runs[peak_run]],
        makespan_s=float(course.end_s.max()),
        store_all_s=graph.store_all_s,
        static_bytes=graph.static_bytes,
        peak_by_pool=dict(zip(pools, course.peak.tolist(), strict=True)),
        _graph=graph,
        _runs=runs,
        _instances=instances,
        _workspace=course.workspace,
        course=course,
        _run_s=run_s,
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
