"""The kernel behind schedules on several queues: a discrete-event simulation.

Compiled by numba on first use and cached beside this file; only `schedsim.simulation.engine`
imports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ._replay import CHECKPOINT, SAVED, TRANSIENT

# What a run waited for last, in the order of `engine.CAUSES`.
NOTHING, QUEUE, INPUT, TURN, MEMORY = range(5)


@njit(cache=True)
def _push(keys: NDArray[np.float64], items: NDArray[np.int64], size: int, key: float, item: int):  # type: ignore[no-untyped-def]
    """Put (key, item) into the binary heap of `size` entries, least first."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@njit(cache=True)
def _pop(keys: NDArray[np.float64], items: NDArray[np.int64], size: int) -> int:
    """Take the least entry out of the binary heap of `size` entries; its item."""
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


@njit(cache=True)
def bind_runs(
    runs: NDArray[np.int32],
    op_queue: NDArray[np.int64],
    num_queues: int,
    follow_start: NDArray[np.int64],
    follow_queue: NDArray[np.int64],
    read_start: NDArray[np.int64],
    read_tensor: NDArray[np.int64],
    write_start: NDArray[np.int64],
    write_tensor: NDArray[np.int64],
    tensor_producer: NDArray[np.int64],
) -> Any:
    """What the sequence decides, whatever the times.

    Returns (made, writer, uses, input_start, input_instance, turn_start, turn_run, line_start,
    line): of each run the first instance that it writes, the instances that it reads and the
    compute runs that must have started; of each instance its run and how many runs use it; of each
    queue its runs, in order.
    """
    num_runs, num_tensors = runs.size, tensor_producer.size
    made = np.empty(num_runs + 1, np.int64)
    input_start = np.zeros(num_runs + 1, np.int64)
    turn_start = np.zeros(num_runs + 1, np.int64)
    line_start = np.zeros(num_queues + 1, np.int64)
    num_made = 0
    for t in range(num_tensors):
        if tensor_producer[t] < 0:
            num_made += 1
    num_given = num_made
    for k in range(num_runs):
        op = runs[k]
        made[k] = num_made
        num_made += write_start[op + 1] - write_start[op]
        input_start[k + 1] = input_start[k] + read_start[op + 1] - read_start[op]
        turn_start[k + 1] = turn_start[k] + follow_start[op + 1] - follow_start[op]
        line_start[op_queue[op] + 1] += 1
    made[num_runs] = num_made
    for q in range(num_queues):
        line_start[q + 1] += line_start[q]
    writer = np.full(num_made, -1, np.int64)
    uses = np.zeros(num_made, np.int64)
    input_instance = np.empty(input_start[num_runs], np.int64)
    turn_run = np.full(turn_start[num_runs], -1, np.int64)
    line = np.empty(num_runs, np.int64)
    filled = line_start.copy()
    latest = np.full(num_tensors, -1, np.int64)
    newest = np.full(num_queues, -1, np.int64)
    given = 0
    for t in range(num_tensors):
        if tensor_producer[t] < 0:
            latest[t] = given
            given += 1
    assert given == num_given
    for k in range(num_runs):
        op = runs[k]
        for j in range(read_start[op + 1] - read_start[op]):
            instance = latest[read_tensor[read_start[op] + j]]
            input_instance[input_start[k] + j] = instance
            uses[instance] += 1
        for j in range(follow_start[op + 1] - follow_start[op]):
            turn_run[turn_start[k] + j] = newest[follow_queue[follow_start[op] + j]]
        for j in range(write_start[op + 1] - write_start[op]):
            instance = made[k] + j
            latest[write_tensor[write_start[op] + j]] = instance
            writer[instance] = k
            uses[instance] += 1
        q = op_queue[op]
        newest[q] = k
        line[filled[q]] = k
        filled[q] += 1
    return (
        made,
        writer,
        uses,
        input_start,
        input_instance,
        turn_start,
        turn_run,
        line_start,
        line,
    )


@njit(cache=True)
def simulate_queues(
    runs: NDArray[np.int32],
    op_time_s: NDArray[np.float64],
    op_queue: NDArray[np.int64],
    op_pool: NDArray[np.int64],
    op_home: NDArray[np.int64],
    op_workspace_bytes: NDArray[np.int64],
    op_saving_workspace_bytes: NDArray[np.int64],
    write_optional: NDArray[np.bool_],
    write_start: NDArray[np.int64],
    tensor_bytes: NDArray[np.int64],
    tensor_pool: NDArray[np.int64],
    tensor: NDArray[np.int32],
    last: NDArray[np.int32],
    source: NDArray[np.int32],
    lasting: NDArray[np.bool_],
    made: NDArray[np.int64],
    writer: NDArray[np.int64],
    uses: NDArray[np.int64],
    input_start: NDArray[np.int64],
    input_instance: NDArray[np.int64],
    turn_start: NDArray[np.int64],
    turn_run: NDArray[np.int64],
    line_start: NDArray[np.int64],
    line: NDArray[np.int64],
    used: NDArray[np.int64],
    capacity: NDArray[np.int64],
) -> Any:
    """Start and end every run; O((runs + reads + writes) log queues) where no memory is short.

    `used`, bytes of each pool before the first run, and `uses`, runs that have yet to use each
    instance, change as time goes. `lasting` instances live to the end.

    Returns (num_ended, start_s, end_s, cause, blocker, events, freed, shared, workspace, memory,
    peak, peak_run). `events` holds ``2 * run`` for a start and ``2 * run + 1`` for an end, in the
    order in which they happened; `freed` the event that frees each instance; `shared` the bytes
    that it takes over from its source; `memory` the bytes of the run's pool right after its start.
    """
    num_runs, num_queues, num_pools = runs.size, line_start.size - 1, used.size
    start_s = np.zeros(num_runs, np.float64)
    end_s = np.zeros(num_runs, np.float64)
    cause = np.zeros(num_runs, np.int8)
    blocker = np.full(num_runs, -1, np.int32)
    events = np.empty(2 * num_runs, np.int64)
    freed = np.full(tensor.size, 2 * num_runs, np.int64)
    shared = np.zeros(tensor.size, np.int64)
    handed = np.zeros(tensor.size, np.int64)
    workspace = np.zeros(num_runs, np.int64)
    memory = np.zeros(num_runs, np.int64)
    given = used.copy()
    peak = np.full(num_pools, -1, np.int64)
    peak_run = np.full(num_pools, -1, np.int64)

    begun = np.zeros(num_runs, np.bool_)
    ended = np.zeros(num_runs, np.bool_)
    short = np.zeros(num_runs, np.bool_)
    head = line_start[:num_queues].copy()
    # Queues whose next run waits for the start, or the end, of a run: linked lists by run.
    await_start = np.full(num_runs, -1, np.int32)
    await_end = np.full(num_runs, -1, np.int32)
    next_waiting = np.full(num_queues, -1, np.int32)
    parked = np.empty(num_queues, np.int64)
    ready_key = np.empty(num_queues + 1, np.float64)
    ready_run = np.empty(num_queues + 1, np.int64)
    going_key = np.empty(num_queues + 1, np.float64)
    going_run = np.empty(num_queues + 1, np.int64)
    num_ready, num_going, num_parked, num_events, num_ended = 0, 0, 0, 0, 0
    now, freer = 0.0, -1
    for q in range(num_queues):
        if head[q] < line_start[q + 1]:
            k = line[head[q]]
            _push(ready_key, ready_run, num_ready, float(k), k)
            num_ready += 1
    while True:
        while num_ready > 0:
            k = _pop(ready_key, ready_run, num_ready)
            num_ready -= 1
            op = runs[k]
            q = op_queue[op]
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
            for j in range(turn_start[k], turn_start[k + 1]):
                other = turn_run[j]
                if other >= 0 and not begun[other]:
                    next_waiting[q] = await_start[other]
                    await_start[other] = q
                    blocked = True
                    break
            if blocked:
                continue
            # Take the memory, look whether it fits, give it back where it does not.
            saves, fits = False, True
            base = write_start[op] - made[k]
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
            temporary = op_saving_workspace_bytes[op] if saves else op_workspace_bytes[op]
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
            memory[k] = used[op_home[op]]
            workspace[k] = temporary
            begun[k] = True
            start_s[k] = now
            end_s[k] = now + op_time_s[op]
            events[num_events] = 2 * k
            num_events += 1
            _push(going_key, going_run, num_going, end_s[k], k)
            num_going += 1
            if short[k]:
                cause[k], blocker[k] = MEMORY, freer
            elif head[q] > line_start[q] and end_s[line[head[q] - 1]] == now:
                cause[k], blocker[k] = QUEUE, line[head[q] - 1]
            else:
                for j in range(turn_start[k], turn_start[k + 1]):
                    other = turn_run[j]
                    if other >= 0 and start_s[other] == now:
                        cause[k], blocker[k] = TURN, other
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
            q = op_queue[op]
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
    for p in range(num_pools):
        if given[p] > peak[p]:
            peak[p], peak_run[p] = given[p], events[0] // 2
    return (
        num_ended,
        start_s,
        end_s,
        cause,
        blocker,
        events,
        freed,
        shared,
        workspace,
        memory,
        peak,
        peak_run,
    )


@njit(cache=True)
def name_copies(
    runs: NDArray[np.int32],
    op_copy: NDArray[np.bool_],
    made: NDArray[np.int64],
    input_start: NDArray[np.int64],
    input_instance: NDArray[np.int64],
    category: NDArray[np.int8],
) -> None:
    """What is only copied belongs to the category of what is made of it; changes `category`."""
    for k in range(runs.size - 1, -1, -1):
        if not op_copy[runs[k]]:
            continue
        for i in range(made[k], made[k + 1]):
            for j in range(input_start[k], input_start[k + 1]):
                kept = category[input_instance[j]]
                better = category[i] == CHECKPOINT or (category[i] == SAVED and kept == TRANSIENT)
                if better and kept in (TRANSIENT, SAVED):
                    category[input_instance[j]] = category[i]
