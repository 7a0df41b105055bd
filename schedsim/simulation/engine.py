"""Schedules on several streams: a discrete-event simulation of runs, copies and memory.

A stream runs the ops that the schedule puts on it, in issue order, one at a time. A run starts as
soon as

- its stream is free,
- the runs that write its inputs have ended; the order of the schedule, never the times, decides
  which instance of a tensor a run reads,
- it has been issued: a copy starts no earlier than the last compute run before it in the schedule
  on the device whose memory the copy touches. So the place of a prefetch in the schedule says when
  the prefetch may begin and take memory. Without this rule the prefetch would begin as soon as the
  copy to the host has ended,
- its outputs and its workspace fit, in every pool that has a capacity.

Events at the same time are ordered: first runs end, then runs start, by their place in the
schedule. A run that takes no time ends in the next round of the same instant.

An instance of a tensor takes memory from the start of the run that writes it to the end of the last
run, in time, that reads it. An output takes over the storage of an input where, as its run starts,
all other runs that read it have ended.

Without capacities, no legal schedule gets stuck, and making a run faster delays no other run. With
them, less work can take more time (Graham 1969, "Bounds on multiprocessing timing anomalies", SIAM
J. Appl. Math. 17): a run that comes early may take the memory that a more urgent one needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks.value_checks import check_bytes, shown
from ..errors import DeadlockError, SchedsimError
from ..units import format_bytes_short
from .course import CAUSES, Course, IssueOrder, Started, StreamRoom
from .issue_order import issue_order
from .pool_bytes import newest_instances

if TYPE_CHECKING:
    from ..dataflow.arrays import GraphArrays
    from ..dataflow.graph import Graph

__all__ = ["CAUSES", "capacity_array", "play_streams"]


def play_streams(
    graph: Graph,
    runs: NDArray[np.int32],
    instances: tuple[NDArray[Any], ...],
    capacities: Mapping[str, int] | None,
    run_s: NDArray[np.float64] | None = None,
) -> Course:
    """Simulate legal `runs` on the streams of `graph`.

    Parameters
    ----------
    instances
        As `_replay.replay_runs` finds them; the categories of copied tensors are set here.
    run_s
        Seconds of each run; by default those of its op.

    Raises
    ------
    DeadlockError
        No run can start any more, and some have not run.
    """
    from ._engine_kernel import name_copies, simulate_streams

    arrays = graph.arrays
    tensor, _, last, source, category = instances
    order = issue_order(graph, runs)
    name_copies(arrays, runs, order, category)
    lasting = _lasting(arrays, tensor)
    used = arrays.pool_static_bytes.copy()
    given = tensor[(order.writer < 0) & (last >= 0)]
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
    seconds = arrays.op_time_s[runs] if run_s is None else run_s
    begin = Started(
        runs, seconds, tensor, last, source, lasting, order.uses.copy(), used, used.copy(), limits
    )
    found = _empty_course(order, tensor.size, runs.size, used.size)
    ended = simulate_streams(arrays, begin, order, found, _stream_room(order, tensor.size))
    if ended < runs.size:
        from ._deadlock import explain_deadlock

        raise explain_deadlock(graph, found, begin, ended)
    return found


def _empty_course(order: IssueOrder, num_instances: int, num_runs: int, num_pools: int) -> Course:
    ints = np.int64
    return Course(
        start_s=np.zeros(num_runs),
        end_s=np.zeros(num_runs),
        cause=np.zeros(num_runs, np.int8),
        blocker=np.full(num_runs, -1, np.int32),
        events=np.empty(2 * num_runs, ints),
        freed=np.full(num_instances, 2 * num_runs, ints),
        shared=np.zeros(num_instances, ints),
        workspace=np.zeros(num_runs, ints),
        memory=np.zeros(num_runs, ints),
        peak=np.full(num_pools, -1, ints),
        peak_run=np.full(num_pools, -1, ints),
        order=order,
    )


def _stream_room(order: IssueOrder, num_instances: int) -> StreamRoom:
    num_runs, num_streams = order.line.size, order.line_start.size - 1
    ints = np.int64
    return StreamRoom(
        begun=np.zeros(num_runs, np.bool_),
        ended=np.zeros(num_runs, np.bool_),
        short=np.zeros(num_runs, np.bool_),
        await_start=np.full(num_runs, -1, np.int32),
        await_end=np.full(num_runs, -1, np.int32),
        next_waiting=np.full(num_streams, -1, ints),
        head=order.line_start[:-1].copy(),
        parked=np.empty(num_streams, ints),
        ready_key=np.empty(num_streams + 1),
        ready_run=np.empty(num_streams + 1, ints),
        going_key=np.empty(num_streams + 1),
        going_run=np.empty(num_streams + 1, ints),
        handed=np.zeros(num_instances, ints),
    )


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
    lasting = np.zeros(tensor.size, dtype=np.bool_)
    kept = newest_instances(arrays, tensor)[arrays.tensor_result]
    lasting[kept[kept >= 0]] = True
    return lasting
