"""The cost of a sequence of runs and copies: its timeline under a budget.

Tokens: op ``i`` is ``i``; the copy of tensor ``t`` to the host is ``num_ops + t``, its copy back to
the device is ``num_ops + num_tensors + t``. The rules are those of `schedsim.simulation.engine` for
three streams and two pools, so that both give the same times. There are two reasons for a second
implementation: a search evaluates a million sequences a minute, so that the result is written into
room that already exists; and of a sequence that gets stuck, the search must know the missing bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Flags, Ints, Reals, Record

COMPUTE, D2H, H2D = 0, 1, 2


@dataclass(frozen=True, eq=False)
class LinkedGraph(Record):
    """A graph and a link as the kernels read them; see `GraphArrays`."""

    op_s: Reals
    workspace: Ints
    saving_workspace: Ints
    once: Flags
    read_start: Ints
    reads: Ints
    write_start: Ints
    writes: Ints
    size: Ints
    producer: Ints
    optional: Flags
    result: Flags
    takes_over: Ints
    out_s: Reals  # time of a copy to the host, by tensor
    back_s: Reals
    device_room: int  # budget less static bytes
    host_room: int


@dataclass(frozen=True, eq=False)
class Trace(Record):
    """Room for one evaluation, and its results.

    Attributes
    ----------
    start_s, end_s, memory, scratch : (capacity,)
        By position: times; bytes on the device right after the start, without static bytes; the
        workspace.
    follows : (capacity,)
        For the copy at a position: the op before it, which must have started; -1 for none.
    made_by, reads_at : (capacity + 1,)
        By position: the first instance that the token writes, and its first read in `used`.
    used : (reads,)
        The instance behind each read, in the order of the sequence.
    tensor, is_host, first, last : (instances,)
        `first` is -1 for a graph input; `last` is -1 for an instance that is never materialised,
        and the length of the sequence for one that lives to the end.
    uses, held, takes, ready : (instances,)
        Number of runs that have yet to read it; bytes that its end frees; the instance whose
        storage it may take over, or -1; whether it is there.
    """

    start_s: Reals
    end_s: Reals
    memory: Ints
    scratch: Ints
    follows: Ints
    made_by: Ints
    reads_at: Ints
    used: Ints
    tensor: Ints
    is_host: Flags
    first: Ints
    last: Ints
    uses: Ints
    held: Ints
    takes: Ints
    ready: Flags
    on_device: Ints
    on_host: Ints
    times_run: Ints
    head: Ints
    running: Ints
    low: Ints
    high: Ints
    until_s: Reals
    parked: Flags


def make_trace(linked: LinkedGraph, capacity: int) -> Trace:
    """Room for sequences of up to `capacity` tokens."""
    num_tensors, num_ops = linked.size.size, linked.op_s.size
    most_reads = int(max(1, np.diff(linked.read_start).max(initial=1)))
    most_writes = int(max(1, np.diff(linked.write_start).max(initial=1)))
    instances = num_tensors + capacity * most_writes
    ints, floats = np.int64, np.float64
    return Trace(
        start_s=np.zeros(capacity, floats),
        end_s=np.zeros(capacity, floats),
        memory=np.zeros(capacity, ints),
        scratch=np.zeros(capacity, ints),
        follows=np.zeros(capacity, ints),
        made_by=np.zeros(capacity + 1, ints),
        reads_at=np.zeros(capacity + 1, ints),
        used=np.zeros(capacity * most_reads, ints),
        tensor=np.zeros(instances, ints),
        is_host=np.zeros(instances, np.bool_),
        first=np.zeros(instances, ints),
        last=np.zeros(instances, ints),
        uses=np.zeros(instances, ints),
        held=np.zeros(instances, ints),
        takes=np.zeros(instances, ints),
        ready=np.zeros(instances, np.bool_),
        on_device=np.zeros(num_tensors, ints),
        on_host=np.zeros(num_tensors, ints),
        times_run=np.zeros(num_ops, ints),
        head=np.zeros(3, ints),
        running=np.zeros(3, ints),
        low=np.zeros(3, ints),
        high=np.zeros(3, ints),
        until_s=np.zeros(3, floats),
        parked=np.zeros(3, np.bool_),
    )


@kernel
def link_instances(linked: LinkedGraph, tokens: Ints, num: int, trace: Trace) -> int:
    """Find instances, and which of them each read means; their number, -1 where illegal."""
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    made = 0
    for t in range(num_tensors):
        trace.on_device[t] = -1
        trace.on_host[t] = -1
        if linked.producer[t] < 0:
            trace.tensor[made], trace.is_host[made] = t, False
            trace.first[made], trace.last[made], trace.takes[made] = -1, -1, -1
            trace.uses[made] = 0
            trace.on_device[t] = made
            made += 1
    for i in range(num_ops):
        trace.times_run[i] = 0
    place, newest = 0, -1
    for k in range(num):
        token = tokens[k]
        trace.follows[k] = newest
        trace.made_by[k] = made
        trace.reads_at[k] = place
        if token < num_ops:
            if trace.times_run[token] and linked.once[token]:
                return -1
            trace.times_run[token] += 1
            for r in range(linked.read_start[token], linked.read_start[token + 1]):
                instance = trace.on_device[linked.reads[r]]
                if instance < 0:
                    return -1
                trace.last[instance] = k
                trace.uses[instance] += 1
                trace.used[place] = instance
                place += 1
            newest = k
            for w in range(linked.write_start[token], linked.write_start[token + 1]):
                t = linked.writes[w]
                trace.tensor[made], trace.is_host[made], trace.first[made] = t, False, k
                trace.last[made] = -1 if linked.optional[t] else k
                over = linked.takes_over[t]
                trace.takes[made] = trace.on_device[over] if over >= 0 else -1
                trace.uses[made] = 1
                trace.on_device[t] = made
                made += 1
            continue
        out = token < num_ops + num_tensors
        t = token - num_ops if out else token - num_ops - num_tensors
        instance = trace.on_device[t] if out else trace.on_host[t]
        if instance < 0:
            return -1
        trace.last[instance] = k
        trace.uses[instance] += 1
        trace.used[place] = instance
        place += 1
        trace.tensor[made], trace.is_host[made], trace.first[made] = t, out, k
        trace.last[made], trace.takes[made], trace.uses[made] = k, -1, 1
        if out:
            trace.on_host[t] = made
        else:
            trace.on_device[t] = made
        made += 1
    trace.made_by[num] = made
    trace.reads_at[num] = place
    for i in range(num_ops):
        if trace.times_run[i] == 0:
            return -1
    for t in range(num_tensors):
        if linked.result[t]:
            if trace.on_device[t] < 0:
                return -1
            trace.last[trace.on_device[t]] = num  # never freed
    return made


@kernel
def _next(tokens: Ints, num: int, at: int, low: int, high: int) -> int:
    """The first position behind `at` with a token in ``[low, high)``; `num` for none."""
    at += 1
    while at < num and not (low <= tokens[at] < high):
        at += 1
    return at


@kernel
def evaluate(linked: LinkedGraph, tokens: Ints, num: int, trace: Trace) -> Any:
    """(makespan in s, bytes over budget, position of the most); makespan is -1 where illegal.

    The bytes over budget are those that a run lacks when no other run or copy is left to end. The
    run starts all the same, and the times are those of a device with that much more memory.
    O(tokens + reads + writes) time.
    """
    made = link_instances(linked, tokens, num, trace)
    if made < 0:
        return -1.0, 0, -1
    num_ops, num_tensors = linked.op_s.size, linked.size.size
    used = 0
    for i in range(made):
        trace.held[i] = linked.size[trace.tensor[i]]
        trace.ready[i] = trace.first[i] < 0
        if trace.first[i] < 0 and trace.last[i] >= 0:
            used += trace.held[i]
    worst, worst_at = max(0, used - linked.device_room), 0
    host_used = 0
    # For each stream: its next run, the run under way, the end of that run, and whether the next
    # run lacks memory.
    head, running, until_s, parked = trace.head, trace.running, trace.until_s, trace.parked
    low, high = trace.low, trace.high
    low[0], high[0] = 0, num_ops
    low[1], high[1] = num_ops, num_ops + num_tensors
    low[2], high[2] = num_ops + num_tensors, num_ops + 2 * num_tensors
    for q in range(3):
        head[q] = _next(tokens, num, -1, low[q], high[q])
        running[q] = -1
    now_s, begun, forced = 0.0, -1, -1
    while True:
        for q in range(3):
            parked[q] = False
        while True:  # starts, by place in the sequence
            k, chosen = num, -1
            for q in range(3):
                at = head[q]
                if at >= k or running[q] >= 0 or parked[q]:
                    continue
                if q > 0 and trace.follows[at] > begun:
                    continue
                for r in range(trace.reads_at[at], trace.reads_at[at + 1]):
                    if not trace.ready[trace.used[r]]:
                        break
                else:
                    k, chosen = at, q
            if chosen < 0:
                break
            need, scratch, saves = 0, 0, False
            for i in range(trace.made_by[k], trace.made_by[k + 1]):
                if trace.last[i] >= 0:
                    size = linked.size[trace.tensor[i]]
                    need += size
                    if chosen == COMPUTE:
                        saves = saves or linked.optional[trace.tensor[i]]
                        source = trace.takes[i]
                        if source >= 0 and trace.last[source] == k and trace.uses[source] == 1:
                            need -= min(size, linked.size[trace.tensor[source]])
            if chosen == COMPUTE:
                scratch = (
                    linked.saving_workspace[tokens[k]] if saves else linked.workspace[tokens[k]]
                )
                need += scratch
            if chosen == D2H:
                lacks = host_used + need - linked.host_room
            else:
                lacks = used + need - linked.device_room
            if lacks > 0 and k != forced:
                parked[chosen] = True
                continue
            if lacks > worst:
                worst, worst_at = lacks, k
            forced = -1
            if chosen == D2H:
                host_used += need
            else:
                used += need
            lasts = 0.0
            if chosen == COMPUTE:
                lasts = linked.op_s[tokens[k]]
                begun = k
                for i in range(trace.made_by[k], trace.made_by[k + 1]):
                    source = trace.takes[i]
                    if trace.last[i] < 0 or source < 0 or trace.last[source] != k:
                        continue
                    if trace.uses[source] == 1:
                        trace.held[source] -= min(
                            linked.size[trace.tensor[i]], linked.size[trace.tensor[source]]
                        )
            elif chosen == D2H:
                lasts = linked.out_s[tokens[k] - num_ops]
            else:
                lasts = linked.back_s[tokens[k] - num_ops - num_tensors]
            trace.memory[k], trace.scratch[k] = used, scratch
            trace.start_s[k], trace.end_s[k] = now_s, now_s + lasts
            running[chosen], until_s[chosen] = k, now_s + lasts
            head[chosen] = _next(tokens, num, k, low[chosen], high[chosen])
        later_s = np.inf
        for q in range(3):
            if running[q] >= 0 and until_s[q] < later_s:
                later_s = until_s[q]
        if later_s == np.inf:
            forced = num
            for q in range(3):
                if parked[q] and head[q] < forced:
                    forced = head[q]
            if forced == num:
                break
            continue
        now_s = later_s
        for q in range(3):
            k = running[q]
            if k < 0 or until_s[q] != now_s:
                continue
            running[q] = -1
            used -= trace.scratch[k]
            for r in range(trace.reads_at[k], trace.reads_at[k + 1]):
                i = trace.used[r]
                trace.uses[i] -= 1
                if trace.uses[i] == 0 and trace.last[i] < num:
                    if trace.is_host[i]:
                        host_used -= trace.held[i]
                    else:
                        used -= trace.held[i]
            for i in range(trace.made_by[k], trace.made_by[k + 1]):
                trace.ready[i] = True
                trace.uses[i] -= 1
                if trace.uses[i] == 0 and 0 <= trace.last[i] < num:
                    if trace.is_host[i]:
                        host_used -= trace.held[i]
                    else:
                        used -= trace.held[i]
    return now_s, worst, worst_at
