"""Records of arrays of the engine of several streams: its input, its result, its scratch space.

Runs, instances of tensors, streams and memory pools are indices: ``num_runs`` op runs in the order
of the schedule; ``num_instances`` instances, graph inputs first, then in the order in which runs
write them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.record import Codes, Flags, Ints, Reals, Record, ShortInts

CAUSES = ("nothing", "stream", "input", "issue order", "memory")
"""The last thing that a run waited for, by the names that files and commands use: nothing (the run
starts the step), the run before it on its stream (``stream``), the run that writes an input
(``input``), the compute run issued before a copy (``issue order``), or ``memory``."""


@dataclass(frozen=True, eq=False)
class IssueOrder(Record):
    """Everything that the issue order of a schedule decides, whatever the times.

    Attributes
    ----------
    made : (num_runs + 1,) int64
        The first instance that each run writes; graph inputs come before all of these.
    writer, uses : (num_instances,) int64
        The run that writes each instance (-1: an input); the number of runs that write or read it.
    input_start, input_instance : (num_runs + 1,), (num_reads,) int64
        Instances that each run reads.
    issued_start, issued_run : (num_runs + 1,), (num_follows,) int64
        For each copy, the compute runs issued before it, which must start before the copy starts;
        -1 for none.
    line_start, line : (num_streams + 1,), (num_runs,) int64
        Runs of each stream, in issue order.
    """

    made: Ints
    writer: Ints
    uses: Ints
    input_start: Ints
    input_instance: Ints
    issued_start: Ints
    issued_run: Ints
    line_start: Ints
    line: Ints


@dataclass(frozen=True, eq=False)
class Course(Record):
    """When each run started and ended, and the memory meanwhile.

    Attributes
    ----------
    start_s, end_s : (num_runs,) float64
    cause : (num_runs,) int8
        Index into `CAUSES`.
    blocker : (num_runs,) int32
        The run that this run waited for; if it waited for memory, the run whose end freed that
        memory; -1 for none.
    events : (2 * num_runs,) int64
        In order of time: ``2 * run`` for the start of a run, ``2 * run + 1`` for its end.
    freed : (num_instances,) int64
        The event that frees the instance; ``2 * num_runs`` for one that lives to the end.
    shared : (num_instances,) int64
        Bytes that the instance takes over from the input whose storage it uses.
    workspace, memory : (num_runs,) int64
        Temporary bytes of the run; bytes in use on the run's device right after its start.
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
    order: IssueOrder


@dataclass(frozen=True, eq=False)
class Started(Record):
    """The state before the first run, which the kernel changes as time goes on.

    Attributes
    ----------
    runs : (num_runs,) int32
    run_s : (num_runs,) float64
        Seconds that each run takes.
    tensor, last, source : (num_instances,) int32
        As `_replay.replay_runs` finds them.
    lasting : (num_instances,) bool
        Whether the instance lives to the end of the step.
    uses : (num_instances,) int64
        Number of runs that have yet to use the instance.
    used, given, limits : (num_pools,) int64
        Bytes in each pool now, and before the first run; bytes that the pool may hold, -1 for no
        limit.
    """

    runs: ShortInts
    run_s: Reals
    tensor: ShortInts
    last: ShortInts
    source: ShortInts
    lasting: Flags
    uses: Ints
    used: Ints
    given: Ints
    limits: Ints


@dataclass(frozen=True, eq=False)
class StreamRoom(Record):
    """Scratch space for the state of runs and streams.

    Attributes
    ----------
    begun, ended, short : (num_runs,) bool
        Whether a run has started, has ended, has once lacked memory.
    await_start, await_end : (num_runs,) int32
    next_waiting : (num_streams,) int64
        Linked lists by run: the streams whose next run waits for the start, or the end, of this
        run.
    head, parked : (num_streams,) int64
        The place of each stream's next run in `IssueOrder.line`; the streams whose next run lacks
        memory.
    ready_key, ready_run, going_key, going_run : (num_streams + 1,)
        Heaps: runs to try, by their place in the schedule; runs that are going on, by their end.
    handed : (num_instances,) int64
        Bytes of storage that another instance has taken over from this one.
    """

    begun: Flags
    ended: Flags
    short: Flags
    await_start: ShortInts
    await_end: ShortInts
    next_waiting: Ints
    head: Ints
    parked: Ints
    ready_key: Reals
    ready_run: Ints
    going_key: Reals
    going_run: Ints
    handed: Ints
