"""What a sequence of runs and copies costs: its timeline under a budget, in one pass.

Tokens: op ``i`` is ``i``; the copy of tensor ``t`` to the host is ``num_ops + t``, that back to the
device ``num_ops + num_tensors + t``. A run starts when its queue is free, its inputs are there, the
runs before it that allocate in its pool have started, and its memory fits. As memory is granted in
the order of the sequence, one pass over it finds every start, with frees that are due kept in a
heap. The engine has the last word on every plan; this pass is what the search can afford.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COMPUTE, D2H, H2D = 0, 1, 2


class Step(NamedTuple):
    """A graph and a link as the kernels read them; see `GraphArrays`."""

    op_s: Floats
    workspace: Ints
    saving_workspace: Ints
    once: NDArray[np.bool_]
    read_start: Ints
    reads: Ints
    write_start: Ints
    writes: Ints
    size: Ints
    producer: Ints
    optional: NDArray[np.bool_]
    result: NDArray[np.bool_]
    takes_over: Ints
    out_s: Floats  # time of a copy to the host, by tensor
    back_s: Floats
    device_room: int  # budget less static bytes
    host_room: int


class Trace(NamedTuple):
    """Room for one evaluation, and what it found.

    Attributes
    ----------
    start_s, end_s, memory : (capacity,)
        By position: times, and bytes of the device while the run starts, static ones left out.
    tensor, is_host, first, last, until_s, held : (capacity,)
        By instance; `last` is -1 for one that is never materialised, `held` is what it frees.
    used : (capacity,)
        The instance behind each read, in the order of the sequence.
    """

    start_s: Floats
    end_s: Floats
    memory: Ints
    tensor: Ints
    is_host: NDArray[np.bool_]
    first: Ints
    last: Ints
    ready_s: Floats
    until_s: Floats
    held: Ints
    takes: Ints
    used: Ints
    made_by: Ints  # by position: first instance written; one more entry
    reads_at: Ints  # by position: first of its reads in `used`; one more entry
    on_device: Ints
    on_host: Ints
    count: Ints
    heap_s: Floats  # device frees; then those of the host
    heap_bytes: Ints
    host_heap_s: Floats
    host_heap_bytes: Ints


def make_trace(step: Step, capacity: int) -> Trace:
    """Room for sequences of up to `capacity` tokens."""
    num_tensors, num_ops = step.size.size, step.op_s.size
    most_reads = int(max(1, np.diff(step.read_start).max(initial=1)))
    most_writes = int(max(1, np.diff(step.write_start).max(initial=1)))
    instances = num_tensors + capacity * most_writes
    ints, floats = np.int64, np.float64
    events = instances + capacity + 1
    return Trace(
        start_s=np.zeros(capacity, floats),
        end_s=np.zeros(capacity, floats),
        memory=np.zeros(capacity, ints),
        tensor=np.zeros(instances, ints),
        is_host=np.zeros(instances, np.bool_),
        first=np.zeros(instances, ints),
        last=np.zeros(instances, ints),
        ready_s=np.zeros(instances, floats),
        until_s=np.zeros(instances, floats),
        held=np.zeros(instances, ints),
        takes=np.zeros(instances, ints),
        used=np.zeros(capacity * most_reads, ints),
        made_by=np.zeros(capacity + 1, ints),
        reads_at=np.zeros(capacity + 1, ints),
        on_device=np.zeros(num_tensors, ints),
        on_host=np.zeros(num_tensors, ints),
        count=np.zeros(num_ops, ints),
        heap_s=np.zeros(events, floats),
        heap_bytes=np.zeros(events, ints),
        host_heap_s=np.zeros(capacity + 1, floats),
        host_heap_bytes=np.zeros(capacity + 1, ints),
    )


@njit(cache=True)
def _push(times: Any, sizes: Any, num: int, time_s: float, size: int) -> int:
    at = num
    while at > 0:
        up = (at - 1) >> 1
        if times[up] <= time_s:
            break
        times[at], sizes[at] = times[up], sizes[up]
        at = up
    times[at], sizes[at] = time_s, size
    return num + 1


@njit(cache=True)
def _pop(times: Any, sizes: Any, num: int) -> int:
    num -= 1
    time_s, size = times[num], sizes[num]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= num:
            break
        if down + 1 < num and times[down + 1] < times[down]:
            down += 1
        if times[down] >= time_s:
            break
        times[at], sizes[at] = times[down], sizes[down]
        at = down
    times[at], sizes[at] = time_s, size
    return num


@njit(cache=True)
def link_instances(step: Step, tokens: Any, num: int, trace: Trace) -> int:
    """Instances, and which of them each read means; the number of them, -1 where illegal."""
    num_ops, num_tensors = step.op_s.size, step.size.size
    made = 0
    for t in range(num_tensors):
        trace.on_device[t] = -1
        trace.on_host[t] = -1
        if step.producer[t] < 0:
            trace.tensor[made], trace.is_host[made] = t, False
            trace.first[made], trace.last[made], trace.takes[made] = -1, -1, -1
            trace.on_device[t] = made
            made += 1
    for i in range(num_ops):
        trace.count[i] = 0
    place = 0
    for k in range(num):
        token = tokens[k]
        trace.made_by[k] = made
        trace.reads_at[k] = place
        if token < num_ops:
            if trace.count[token] and step.once[token]:
                return -1
            trace.count[token] += 1
            for r in range(step.read_start[token], step.read_start[token + 1]):
                instance = trace.on_device[step.reads[r]]
                if instance < 0:
                    return -1
                trace.last[instance] = k
                trace.used[place] = instance
                place += 1
            for w in range(step.write_start[token], step.write_start[token + 1]):
                t = step.writes[w]
                trace.tensor[made], trace.is_host[made], trace.first[made] = t, False, k
                trace.last[made] = -1 if step.optional[t] else k
                over = step.takes_over[t]
                trace.takes[made] = trace.on_device[over] if over >= 0 else -1
                trace.on_device[t] = made
                made += 1
            continue
        out = token < num_ops + num_tensors
        t = token - num_ops if out else token - num_ops - num_tensors
        instance = trace.on_device[t] if out else trace.on_host[t]
        if instance < 0:
            return -1
        trace.last[instance] = k
        trace.used[place] = instance
        place += 1
        trace.tensor[made], trace.is_host[made], trace.first[made] = t, out, k
        trace.last[made], trace.takes[made] = k, -1
        if out:
            trace.on_host[t] = made
        else:
            trace.on_device[t] = made
        made += 1
    trace.made_by[num] = made
    trace.reads_at[num] = place
    for i in range(num_ops):
        if trace.count[i] == 0:
            return -1
    for t in range(num_tensors):
        if step.result[t]:
            if trace.on_device[t] < 0:
                return -1
            trace.last[trace.on_device[t]] = num  # never freed
    return made


@njit(cache=True)
def evaluate(step: Step, tokens: Any, num: int, trace: Trace) -> Any:
    """(makespan in s, bytes over budget, position of the most); makespan is -1 where illegal.

    Over budget are the bytes that a run lacks when everything before it has ended, so that it can
    never start; the times are then those of a device with just enough memory.
    O((tokens + reads + writes) log) time.
    """
    made = link_instances(step, tokens, num, trace)
    if made < 0:
        return -1.0, 0, -1
    num_ops, num_tensors = step.op_s.size, step.size.size
    compute_s = out_s = back_s = 0.0
    device_s = host_s = 0.0  # start of the last run that allocated there
    used = host_used = 0
    frees = host_frees = 0
    makespan_s = 0.0
    for i in range(made):
        trace.until_s[i] = 0.0
        trace.held[i] = step.size[trace.tensor[i]]
        if trace.first[i] < 0:
            trace.ready_s[i] = 0.0
            if trace.last[i] >= 0:
                used += trace.held[i]
    worst, worst_at = max(0, used - step.device_room), 0
    place = 0
    for k in range(num):
        token = tokens[k]
        is_op = token < num_ops
        is_out = (not is_op) and token < num_ops + num_tensors
        begin = compute_s if is_op else (out_s if is_out else back_s)
        num_reads = step.read_start[token + 1] - step.read_start[token] if is_op else 1
        for r in range(place, place + num_reads):
            ready = trace.ready_s[trace.used[r]]
            if ready > begin:
                begin = ready
        need, scratch, lasts = 0, 0, 0.0
        saves = False
        for i in range(trace.made_by[k], trace.made_by[k + 1]):
            if trace.last[i] < 0:
                continue
            size = step.size[trace.tensor[i]]
            need += size
            if is_op and step.optional[trace.tensor[i]]:
                saves = True
            source = trace.takes[i]
            if source >= 0 and trace.last[source] == k:
                shared = min(size, step.size[trace.tensor[source]])
                need -= shared
                trace.held[source] -= shared
        if is_op:
            scratch = step.saving_workspace[token] if saves else step.workspace[token]
            need += scratch
            lasts = step.op_s[token]
        else:
            lasts = step.out_s[token - num_ops] if is_out else step.back_s[
                token - num_ops - num_tensors
            ]
        if is_out:
            if need > 0:
                begin = max(begin, host_s)
                while host_frees and trace.host_heap_s[0] <= begin:
                    host_used -= trace.host_heap_bytes[0]
                    host_frees = _pop(trace.host_heap_s, trace.host_heap_bytes, host_frees)
                while host_used + need > step.host_room and host_frees:
                    begin = max(begin, trace.host_heap_s[0])
                    host_used -= trace.host_heap_bytes[0]
                    host_frees = _pop(trace.host_heap_s, trace.host_heap_bytes, host_frees)
                host_used += need
                host_s = begin
                if host_used - step.host_room > worst:
                    worst, worst_at = host_used - step.host_room, k
        elif need > 0:
            begin = max(begin, device_s)
            while frees and trace.heap_s[0] <= begin:
                used -= trace.heap_bytes[0]
                frees = _pop(trace.heap_s, trace.heap_bytes, frees)
            while used + need > step.device_room and frees:
                begin = max(begin, trace.heap_s[0])
                used -= trace.heap_bytes[0]
                frees = _pop(trace.heap_s, trace.heap_bytes, frees)
            used += need
            device_s = begin
            if used - step.device_room > worst:
                worst, worst_at = used - step.device_room, k
        trace.memory[k] = used
        end = begin + lasts
        trace.start_s[k], trace.end_s[k] = begin, end
        makespan_s = max(makespan_s, end)
        if is_op:
            compute_s = end
            if scratch:
                frees = _push(trace.heap_s, trace.heap_bytes, frees, end, scratch)
        elif is_out:
            out_s = end
        else:
            back_s = end
        for r in range(place, place + num_reads):
            i = trace.used[r]
            trace.until_s[i] = max(trace.until_s[i], end)
            if trace.last[i] == k:
                if trace.is_host[i]:
                    host_frees = _push(
                        trace.host_heap_s,
                        trace.host_heap_bytes,
                        host_frees,
                        trace.until_s[i],
                        trace.held[i],
                    )
                elif trace.held[i]:
                    frees = _push(
                        trace.heap_s, trace.heap_bytes, frees, trace.until_s[i], trace.held[i]
                    )
        place += num_reads
        for i in range(trace.made_by[k], trace.made_by[k + 1]):
            trace.ready_s[i] = end
            trace.until_s[i] = end
            if trace.last[i] == k:
                if is_out:
                    host_frees = _push(
                        trace.host_heap_s, trace.host_heap_bytes, host_frees, end, trace.held[i]
                    )
                else:
                    frees = _push(trace.heap_s, trace.heap_bytes, frees, end, trace.held[i])
    return makespan_s, worst, worst_at
