"""Schedules on several queues: a discrete-event simulation of runs, copies and memory.

Queues run their entries in the order of the schedule, one at a time. A run starts as soon as

- its queue is free,
- the runs that write its inputs have ended; which instance of a tensor a run reads is decided by
  the order of the schedule, never by times,
- it is a copy's turn: a copy, an op that need not run, starts no earlier than the compute run
  before it in the schedule, on the device whose memory it touches. So the place of ``h2d:x`` in the
  schedule says when the prefetch may begin, and take its bytes. Without this rule it would begin
  as soon as ``d2h:x`` has ended,
- its outputs and its workspace fit, in every pool that has a capacity.

What happens at the same time happens in this order: first runs end, then runs start, by their
place in the schedule; runs that take no time end in the next round of the same instant.

An instance of a tensor takes memory from the start of the run that writes it to the end of the last
run, in time, that reads it. An output takes over the storage of an input where, as its run starts,
all other runs that read it have ended.

Without capacities, no legal schedule gets stuck, and a run that takes less time delays nothing.
With them, less work can take more time (Graham 1969, "Bounds on multiprocessing timing anomalies",
SIAM J. Appl. Math. 17): a run that comes early may take the memory that a more urgent one needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_bytes, shown
from ..errors import DeadlockError, SchedsimError
from ..units import format_bytes_short

if TYPE_CHECKING:
    from ..dataflow.arrays import GraphArrays
    from ..dataflow.graph import Graph

CAUSES = ("nothing", "queue", "input", "turn", "memory")
"""What a run waited for last: nothing (it starts the step), the run before it on its queue, the run
that writes an input, the compute run that a copy follows, or memory."""


@dataclass(frozen=True)
class Bound:
    """What the order of a schedule decides, whatever the times.

    Attributes
    ----------
    made : (num_runs + 1,) int64
        The first instance that each run writes; graph inputs stand before all of them.
    writer, uses : (num_instances,) int64
        The run that writes each instance (-1: an input); how many runs write or read it.
    input_start, input_instance : (num_runs + 1,), (num_reads,) int64
        Instances that each run reads.
    turn_start, turn_run : (num_runs + 1,), (num_turns,) int64
        Compute runs that must have started before each copy does; -1 for none.
    line_start, line : (num_queues + 1,), (num_runs,) int64
        Runs of each queue, in order.
    """

    made: NDArray[np.int64]
    writer: NDArray[np.int64]
    uses: NDArray[np.int64]
    input_start: NDArray[np.int64]
    input_instance: NDArray[np.int64]
    turn_start: NDArray[np.int64]
    turn_run: NDArray[np.int64]
    line_start: NDArray[np.int64]
    line: NDArray[np.int64]


@dataclass(frozen=True)
class Course:
    """What happened, in time.

    Attributes
    ----------
    start_s, end_s : (num_runs,) float64
    cause : (num_runs,) int8
        Index into `CAUSES`.
    blocker : (num_runs,) int32
        The run that was waited for; of memory, the run whose end freed it. -1 for none.
    events : (2 * num_runs,) int64
        ``2 * run`` for a start, ``2 * run + 1`` for an end, in order.
    freed : (num_instances,) int64
        The event that frees the instance; ``2 * num_runs`` for one that lives to the end.
    shared : (num_instances,) int64
        Bytes that it takes over from the input whose storage it uses.
    workspace, memory : (num_runs,) int64
        Temporary bytes; bytes of the pool of the run's device right after its start.
    peak, peak_run : (num_pools,) int64
    """

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    cause: NDArray[np.int8]
    blocker: NDArray[np.int32]
    events: NDArray[np.int64]
    freed: NDArray[np.int64]
    shared: NDArray[np.int64]
    workspace: NDArray[np.int64]
    memory: NDArray[np.int64]
    peak: NDArray[np.int64]
    peak_run: NDArray[np.int64]
    bound: Bound


# What the kernel returns, but for the number of runs that ended.
_COURSE = [field.name for field in fields(Course)][:-1]


def bind(graph: Graph, runs: NDArray[np.int32]) -> Bound:
    """What the order of `runs`, which are legal, decides on `graph`; O(runs + reads + writes)."""
    from ._engine_kernel import bind_runs

    arrays = graph.arrays
    return Bound(
        *bind_runs(
            runs,
            arrays.op_queue,
            len(arrays.queue_names),
            arrays.follow_start,
            arrays.follow_queue,
            arrays.read_start,
            arrays.read_tensor,
            arrays.write_start,
            arrays.write_tensor,
            arrays.tensor_producer,
        )
    )


def run_queues(
    graph: Graph,
    runs: NDArray[np.int32],
    instances: tuple[NDArray[Any], ...],
    capacities: Mapping[str, int] | None,
) -> Course:
    """What happens when `runs`, which are legal, run on the queues of `graph`.

    Parameters
    ----------
    instances
        As found by `_replay.find_lifetimes`; the categories of what is copied are settled here.

    Raises
    ------
    DeadlockError
        No run can start, and some have not.
    """
    from ._engine_kernel import name_copies, simulate_queues

    arrays = graph.arrays
    tensor, _, last, source, category = instances
    bound = bind(graph, runs)
    name_copies(runs, arrays.op_copy, bound.made, bound.input_start, bound.input_instance, category)
    lasting = _lasting(arrays, tensor)
    used = arrays.pool_static_bytes.copy()
    given = tensor[(bound.writer < 0) & (last >= 0)]
    np.add.at(used, arrays.tensor_pool[given], arrays.tensor_bytes[given])
    limits = capacity_array(arrays.pool_names, capacities)
    over = np.flatnonzero((limits >= 0) & (used > limits))
    if over.size:
        pool = arrays.pool_names[over[0]]
        raise DeadlockError(
            f"pool {pool!r} holds {format_bytes_short(int(used[over[0]]))} before the first run, "
            f"more than its {format_bytes_short(int(limits[over[0]]))}",
            run_index=None,
            op_name="",
            waits=(),
            hint="static bytes and inputs alone need a larger capacity",
        )
    uses = bound.uses.copy()
    ended, *happened = simulate_queues(
        runs,
        arrays.op_time_s,
        arrays.op_queue,
        arrays.op_pool,
        arrays.op_home,
        arrays.op_workspace_bytes,
        arrays.op_saving_workspace_bytes,
        arrays.write_optional,
        arrays.write_start,
        arrays.tensor_bytes,
        arrays.tensor_pool,
        tensor,
        last,
        source,
        lasting,
        bound.made,
        bound.writer,
        uses,
        bound.input_start,
        bound.input_instance,
        bound.turn_start,
        bound.turn_run,
        bound.line_start,
        bound.line,
        used,
        limits,
    )
    found = Course(**dict(zip(_COURSE, happened, strict=True)), bound=bound)
    if ended < runs.size:
        from ._deadlock import explain_deadlock

        raise explain_deadlock(graph, runs, instances, found, ended, uses, used, limits)
    return found


def capacity_array(
    pool_names: tuple[str, ...], capacities: Mapping[str, int] | None
) -> NDArray[np.int64]:
    """Bytes that each pool may hold, ``(num_pools,)``; -1 for those without a limit."""
    limits = np.full(len(pool_names), -1, dtype=np.int64)
    for pool, size in (capacities or {}).items():
        check_bytes(size, f"capacities.{pool}")
        if pool not in pool_names:
            raise SchedsimError(
                f"no pool {shown(pool)} in this workload",
                hint=f"its pools are {', '.join(pool_names)}",
            )
        limits[pool_names.index(pool)] = size
    return limits


def _lasting(arrays: GraphArrays, tensor: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which instances live to the end: the last one of each result."""
    from .pool_bytes import newest_instances

    lasting = np.zeros(tensor.size, dtype=np.bool_)
    kept = newest_instances(arrays, tensor)[arrays.tensor_result]
    lasting[kept[kept >= 0]] = True
    return lasting
