"""Schedules on several queues: a discrete-event simulation of runs, copies and memory.

Queues run their entries in the order of the schedule, one at a time. A run starts as soon as

- its queue is free,
- the runs that write its inputs have ended; which instance of a tensor a run reads is decided by
  the order of the schedule, never by times,
- it is a copy's turn: a copy, an op that need not run, starts no earlier than the compute run
  before it in the schedule, on the device whose memory it touches. So the place of a prefetch in
  the schedule says when it may begin, and take its bytes. Without this rule it would begin as soon
  as the copy to the host has ended,
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._checks import check_bytes, shown
from ..errors import DeadlockError, SchedsimError
from ..kernels.record import Codes, Flags, Ints, Reals, Record, ShortInts
from ..units import format_bytes_short

if TYPE_CHECKING:
    from ..dataflow.arrays import GraphArrays
    from ..dataflow.graph import Graph

CAUSES = ("nothing", "queue", "input", "turn", "memory")
"""What a run waited for last: nothing (it starts the step), the run before it on its queue, the run
that writes an input, the compute run that a copy follows, or memory."""


@dataclass(frozen=True, eq=False)
class Bound(Record):
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

    made: Ints
    writer: Ints
    uses: Ints
    input_start: Ints
    input_instance: Ints
    turn_start: Ints
    turn_run: Ints
    line_start: Ints
    line: Ints


@dataclass(frozen=True, eq=False)
class Course(Record):
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

    start_s: Reals
    end_s: Reals
    cause: Codes
    blocker: ShortInts
    events: Ints
    freed: Ints
    shared: Ints
    workspace: Ints
    memory: Ints
    peak: Ints
    peak_run: Ints
    bound: Bound


@dataclass(frozen=True, eq=False)
class Started(Record):
    """What is there before the first run, and changes as time goes.

    Attributes
    ----------
    runs : (num_runs,) int32
    tensor, last, source : (num_instances,) int32
        As `_replay.replay_runs` finds them.
    lasting : (num_instances,) bool
        Those that live to the end.
    uses : (num_instances,) int64
        Runs that have yet to use each.
    used, given, limits : (num_pools,) int64
        Bytes in each pool, now and before the first run; bytes that it may hold, -1 for no limit.
    """

    runs: ShortInts
    tensor: ShortInts
    last: ShortInts
    source: ShortInts
    lasting: Flags
    uses: Ints
    used: Ints
    given: Ints
    limits: Ints


@dataclass(frozen=True, eq=False)
class Queues(Record):
    """Room for what the simulation remembers of runs and queues.

    Attributes
    ----------
    begun, ended, short : (num_runs,) bool
        Whether a run has started, has ended, has once lacked memory.
    await_start, await_end, next_waiting : (num_runs,), (num_runs,), (num_queues,) int64
        Queues whose next run waits for the start, or the end, of a run: linked lists, by run.
    head, parked : (num_queues,) int64
        The place of the next run in `Bound.line`; queues whose next run lacks memory.
    ready_key, ready_run, going_key, going_run : (num_queues + 1,)
        Heaps of runs to try, by place, and of runs that go on, by end.
    handed : (num_instances,) int64
        Bytes that the instance has given to another.
    """

    begun: Flags
    ended: Flags
    short: Flags
    await_start: Ints
    await_end: Ints
    next_waiting: Ints
    head: Ints
    parked: Ints
    ready_key: Reals
    ready_run: Ints
    going_key: Reals
    going_run: Ints
    handed: Ints


def bind(graph: Graph, runs: NDArray[np.int32]) -> Bound:
    """What the order of `runs`, which are legal, decides on `graph`; O(runs + reads + writes)."""
    from ._engine_kernel import bind_runs

    arrays = graph.arrays
    ints = np.int64
    made = np.empty(runs.size + 1, ints)
    input_start = np.zeros(runs.size + 1, ints)
    turn_start = np.zeros(runs.size + 1, ints)
    made[0] = len(graph.inputs)
    np.cumsum(arrays.num_writes[runs], out=made[1:])
    made[1:] += made[0]
    np.cumsum(np.diff(arrays.read_start)[runs], out=input_start[1:])
    np.cumsum(np.diff(arrays.follow_start)[runs], out=turn_start[1:])
    queues = arrays.op_queue[runs]
    bound = Bound(
        made=made,
        writer=np.full(made[-1], -1, ints),
        uses=np.zeros(made[-1], ints),
        input_start=input_start,
        input_instance=np.empty(input_start[-1], ints),
        turn_start=turn_start,
        turn_run=np.full(turn_start[-1], -1, ints),
        line_start=np.searchsorted(np.sort(queues), np.arange(len(arrays.queue_names) + 1)),
        line=np.argsort(queues, kind="stable"),
    )
    latest = np.full(arrays.tensor_bytes.size, -1, ints)
    bind_runs(arrays, runs, bound, latest, np.full(len(arrays.queue_names), -1, ints))
    return bound


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
        As found by `_replay.replay_runs`; the categories of what is copied are settled here.

    Raises
    ------
    DeadlockError
        No run can start, and some have not.
    """
    from ._engine_kernel import name_copies, simulate_queues

    arrays = graph.arrays
    tensor, _, last, source, category = instances
    bound = bind(graph, runs)
    name_copies(arrays, runs, bound, category)
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
    begin = Started(
        runs, tensor, last, source, lasting, bound.uses.copy(), used, used.copy(), limits
    )
    found = _empty_course(bound, tensor.size, runs.size, used.size)
    ended = simulate_queues(arrays, begin, bound, found, _empty_queues(bound, tensor.size))
    if ended < runs.size:
        from ._deadlock import explain_deadlock

        raise explain_deadlock(graph, found, begin, ended)
    return found


def _empty_course(bound: Bound, num_instances: int, num_runs: int, num_pools: int) -> Course:
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
        bound=bound,
    )


def _empty_queues(bound: Bound, num_instances: int) -> Queues:
    num_runs, num_queues = bound.line.size, bound.line_start.size - 1
    ints = np.int64
    return Queues(
        begun=np.zeros(num_runs, np.bool_),
        ended=np.zeros(num_runs, np.bool_),
        short=np.zeros(num_runs, np.bool_),
        await_start=np.full(num_runs, -1, ints),
        await_end=np.full(num_runs, -1, ints),
        next_waiting=np.full(num_queues, -1, ints),
        head=bound.line_start[:-1].copy(),
        parked=np.empty(num_queues, ints),
        ready_key=np.empty(num_queues + 1),
        ready_run=np.empty(num_queues + 1, ints),
        going_key=np.empty(num_queues + 1),
        going_run=np.empty(num_queues + 1, ints),
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
    from .pool_bytes import newest_instances

    lasting = np.zeros(tensor.size, dtype=np.bool_)
    kept = newest_instances(arrays, tensor)[arrays.tensor_result]
    lasting[kept[kept >= 0]] = True
    return lasting
