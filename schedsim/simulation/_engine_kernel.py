"""The kernel behind schedules on several streams: a discrete-event simulation.

Compiled by numba on first use and cached on disk (`schedsim.kernels.cached`); only `engine` and
`issue_order` import it.
"""

from __future__ import annotations

from ..dataflow.arrays import GraphArrays
from ..kernels.compiled import kernel, kernel_with
from ..kernels.record import Codes, Ints, Reals, ShortInts
from ._replay import CHECKPOINT, SAVED, TRANSIENT
from .course import Course, IssueOrder, Started, StreamRoom

# Causes of waiting, in the order of `course.CAUSES`.
NOTHING, STREAM, INPUT, ISSUED, MEMORY = range(5)

# Inlined by force: as a call, the heap's `_pop` took a third of the simulation's time.


@kernel_with(forceinline=True)
def _push(keys: Reals, items: Ints, size: int, key: float, item: int) -> None:
    """Put (key, item) into the binary heap of `size` entries, least first."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@kernel_with(forceinline=True)
def _pop(keys: Reals, items: Ints, size: int) -> int:
    """Take the least entry out of the binary heap of `size` entries, and return its item."""
    least = int(items[0])
    key, item = keys[size - 1], items[size - 1]
    at, size = 0, size - 1
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            keys[right] < keys[below]
            or (keys[right] == keys[below] and items[right] < items[below])
        ):
            below = right
        if key < keys[below] or (key == keys[below] and item < items[below]):
            break
        keys[at], items[at] = keys[below], items[below]
        at = below
    keys[at], items[at] = key, item
    return least


@kernel
def bind_runs(
    graph: GraphArrays, runs: ShortInts, order: IssueOrder, latest: Ints, newest: Ints
) -> None:
    """Fill `order` with what the sequence of runs decides, whatever the times.

    `order.line_start` must be 0 at first. `latest` (num_tensors,) and `newest` (num_streams,) are
    scratch space, -1 at first: the newest instance of each tensor, the newest run of each stream.
    """
    line_start, filled = order.line_start, newest  # free to reuse: `newest` is set further below
    for k in range(runs.size):
        line_start[graph.op_stream[runs[k]] + 1] += 1
    for q in range(newest.size):
        line_start[q + 1] += line_start[q]
        filled[q] = line_start[q]
    for k in range(runs.size):
        q = graph.op_stream[runs[k]]
        order.line[filled[q]] = k
        filled[q] += 1
    newest[:] = -1
    instance = 0
    for t in range(latest.size):
        if graph.tensor_producer[t] < 0:
            latest[t] = instance
            instance += 1
    read = issued = 0
    for k in range(runs.size):
        op = runs[k]
        order.made[k], order.input_start[k], order.issued_start[k] = instance, read, issued
        for r in range(graph.read_start[op], graph.read_start[op + 1]):
            of = latest[graph.read_tensor[r]]
            order.input_instance[read] = of
            order.uses[of] += 1
            read += 1
        for f in range(graph.follow_start[op], graph.follow_start[op + 1]):
            order.issued_run[issued] = newest[graph.follow_stream[f]]
            issued += 1
        for w in range(graph.write_start[op], graph.write_start[op + 1]):
            latest[graph.write_tensor[w]] = instance
            order.writer[instance] = k
            order.uses[instance] += 1
            instance += 1
        newest[graph.op_stream[op]] = k
    last = runs.size
    order.made[last], order.input_start[last], order.issued_start[last] = instance, read, issued


@kernel
def simulate_streams(
    graph: GraphArrays, begin: Started, order: IssueOrder, course: Course, room: StreamRoom
) -> int:
    """Start and end every run; O((runs + reads + writes) log streams) where no memory is short.

    The kernel fills `course`, changes `begin` and uses `room` as scratch space. It returns the
    number of runs that ended, which is less than all runs if the schedule got stuck.

    The state is kept by stream, not by run. Only the next run of each stream can start, so a heap
    with one entry per stream is enough to find the run that starts next.
    """
    runs, tensor, last, source = begin.runs, begin.tensor, begin.last, begin.source
    lasting, uses, used, capacity = begin.lasting, begin.uses, begin.used, begin.limits
    made, writer, line, line_start = order.made, order.writer, order.line, order.line_start
    input_start, input_instance = order.input_start, order.input_instance
    issued_start, issued_run = order.issued_start, order.issued_run
    start_s, end_s, cause, blocker = course.start_s, course.end_s, course.cause, course.blocker
    events, freed, shared = course.events, course.freed, course.shared
    workspace, memory, peak, peak_run = (
        course.workspace,
        course.memory,
        course.peak,
        course.peak_run,
    )
    begun, ended, short, handed = room.begun, room.ended, room.short, room.handed
    await_start, await_end, next_waiting = (
        room.await_start,
        room.await_end,
        room.next_waiting,
    )
    head, parked = room.head, room.parked
    ready_key, ready_run = room.ready_key, room.ready_run
    going_key, going_run = room.going_key, room.going_run
    op_stream, op_pool, write_optional = graph.op_stream, graph.op_pool, graph.write_optional
    tensor_bytes, tensor_pool = graph.tensor_bytes, graph.tensor_pool
    num_streams = head.size
    num_ready, num_going, num_parked, num_events, num_ended = 0, 0, 0, 0, 0
    now, freer = 0.0, -1
    for q in range(num_streams):
        if head[q] < line_start[q + 1]:
            k = line[head[q]]
            _push(ready_key, ready_run, num_ready, float(k), k)
            num_ready += 1
    while True:
        while num_ready > 0:
            k = _pop(ready_key, ready_run, num_ready)
            num_ready -= 1
            op = runs[k]
            q = op_stream[op]
            blocked = False
            for j in range(input_start[k], input_start[k + 1]):
                other = writer[input_instance[j]]
                if other >= 0 and not ended[other]:
                    next_waiting[q] = await_end[other]
                    await_end[other] = q
                    blocked = True
                    break
            if blocked:
                continue
            for j in range(issued_start[k], issued_start[k + 1]):
                other = issued_run[j]
                if other >= 0 and not begun[other]:
                    next_waiting[q] = await_start[other]
                    await_start[other] = q
                    blocked = True
                    break
            if blocked:
                continue
            # Memory is taken first and given back if it does not fit: which outputs take over
            # storage is known only while they are placed.
            saves, fits = False, True
            base = graph.write_start[op] - made[k]
            for i in range(made[k], made[k + 1]):
                if last[i] < 0:
                    continue
                saves = saves or write_optional[base + i]
                size = tensor_bytes[tensor[i]]
                s = source[i]
                if s >= 0 and uses[s] == 1:
                    shared[i] = min(size, tensor_bytes[tensor[s]])
                    handed[s] = shared[i]
                used[tensor_pool[tensor[i]]] += size - shared[i]
            temporary = (
                graph.op_saving_workspace_bytes[op] if saves else graph.op_workspace_bytes[op]
            )
            used[op_pool[op]] += temporary
            fits = capacity[op_pool[op]] < 0 or used[op_pool[op]] <= capacity[op_pool[op]]
            for i in range(made[k], made[k + 1]):
                p = tensor_pool[tensor[i]]
                if last[i] >= 0 and capacity[p] >= 0 and used[p] > capacity[p]:
                    fits = False
            if not fits:
                used[op_pool[op]] -= temporary
                for i in range(made[k], made[k + 1]):
                    if last[i] >= 0:
                        used[tensor_pool[tensor[i]]] -= tensor_bytes[tensor[i]] - shared[i]
                        if shared[i] > 0:
                            shared[i] = 0
                            handed[source[i]] = 0
                short[k] = True
                parked[num_parked] = q
                num_parked += 1
                continue
            for i in range(made[k], made[k + 1]):
                p = tensor_pool[tensor[i]]
                if used[p] > peak[p]:
                    peak[p], peak_run[p] = used[p], k
            p = op_pool[op]
            if used[p] > peak[p]:
                peak[p], peak_run[p] = used[p], k
            memory[k] = used[graph.op_home[op]]
            workspace[k] = temporary
            begun[k] = True
            start_s[k] = now
            end_s[k] = now + begin.run_s[k]
            events[num_events] = 2 * k
            num_events += 1
            _push(going_key, going_run, num_going, end_s[k], k)
            num_going += 1
            if short[k]:
                cause[k], blocker[k] = MEMORY, freer
            elif head[q] > line_start[q] and end_s[line[head[q] - 1]] == now:
                cause[k], blocker[k] = STREAM, line[head[q] - 1]
            else:
                for j in range(issued_start[k], issued_start[k + 1]):
                    other = issued_run[j]
                    if other >= 0 and start_s[other] == now:
                        cause[k], blocker[k] = ISSUED, other
                for j in range(input_start[k], input_start[k + 1]):
                    other = writer[input_instance[j]]
                    if other >= 0 and end_s[other] == now:
                        cause[k], blocker[k] = INPUT, other
            waiting = await_start[k]
            while waiting >= 0:
                other = line[head[waiting]]
                _push(ready_key, ready_run, num_ready, float(other), other)
                num_ready += 1
                waiting = next_waiting[waiting]
        if num_going == 0:
            break
        now = going_key[0]
        while num_going > 0 and going_key[0] == now:
            k = _pop(going_key, going_run, num_going)
            num_going -= 1
            op = runs[k]
            q = op_stream[op]
            freer = k
            ended[k] = True
            num_ended += 1
            used[op_pool[op]] -= workspace[k]
            for j in range(input_start[k], input_start[k + 1]):
                i = input_instance[j]
                uses[i] -= 1
                if uses[i] == 0 and not lasting[i]:
                    used[tensor_pool[tensor[i]]] -= tensor_bytes[tensor[i]] - handed[i]
                    freed[i] = num_events
            for i in range(made[k], made[k + 1]):
                uses[i] -= 1
                if uses[i] == 0 and not lasting[i]:
                    if last[i] >= 0:
                        used[tensor_pool[tensor[i]]] -= tensor_bytes[tensor[i]]
                    freed[i] = num_events
            events[num_events] = 2 * k + 1
            num_events += 1
            head[q] += 1
            if head[q] < line_start[q + 1]:
                other = line[head[q]]
                _push(ready_key, ready_run, num_ready, float(other), other)
                num_ready += 1
            waiting = await_end[k]
            while waiting >= 0:
                other = line[head[waiting]]
                _push(ready_key, ready_run, num_ready, float(other), other)
                num_ready += 1
                waiting = next_waiting[waiting]
        for j in range(num_parked):
            other = line[head[parked[j]]]
            _push(ready_key, ready_run, num_ready, float(other), other)
            num_ready += 1
        num_parked = 0
    for p in range(used.size):
        if begin.given[p] > peak[p]:
            peak[p], peak_run[p] = begin.given[p], events[0] // 2
    return int(num_ended)


@kernel
def name_copies(graph: GraphArrays, runs: ShortInts, order: IssueOrder, category: Codes) -> None:
    """Give a tensor whose only readers are copies the category of the tensors made from its copy.

    Changes `category`. Runs are visited backward, so that the category passes through copies of
    copies.
    """
    for k in range(runs.size - 1, -1, -1):
        if not graph.op_copy[runs[k]]:
            continue
        for i in range(order.made[k], order.made[k + 1]):
            for j in range(order.input_start[k], order.input_start[k + 1]):
                kept = category[order.input_instance[j]]
                better = category[i] == CHECKPOINT or (category[i] == SAVED and kept == TRANSIENT)
                if better and kept in (TRANSIENT, SAVED):
                    category[order.input_instance[j]] = category[i]
