"""The eviction loop behind `dtr`: runs of ops in order, evictions, recomputations.

The loop is compiled by numba on first use, because it looks at every tensor in memory at every
eviction; the machine code is cached on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.kernels.cached import njit

from ._dtr_memory import (
    EVICTED,
    H_DTR_EQ,
    H_LOCAL,
    H_LRU,
    H_MSPS,
    H_NEIGHBOURHOOD,
    H_SIZE,
    IN_POOL,
    NOW,
    RESIDENT,
    STAMP,
    STEPS,
    USED,
    Memory,
    enter,
    evict,
    forget,
    groups_s,
    leave_pool,
    walk_down,
    walk_up,
)

# How a replay ends.
DONE, NO_ROOM, LOST, TOO_LONG = range(4)


@njit(cache=True)
def _grown(array: Any, size: int) -> Any:
    """`array`, or a copy at least twice as long where `size` entries do not fit."""
    if size <= array.size:
        return array
    larger = np.empty(max(2 * array.size, size), array.dtype)
    for k in range(array.size):
        larger[k] = array[k]
    return larger


@njit(cache=True)
def _banished_with(t: int, g: Any, m: Any) -> int:
    """Evicted tensors that go for good with `t`, left on the stack; -1 where one is still needed.

    The tensors that `t` leads to must be in memory, or never be read again.
    """
    m.num[STAMP] += 1
    mark = m.num[STAMP]
    m.stack[0] = t
    height, at = 1, 0
    while at < height:
        t = m.stack[at]
        at += 1
        for k in range(g.reader_start[t], g.reader_start[t + 1]):
            op = g.reader_op[k]
            m.num[STEPS] += 1
            if not m.ran[op]:
                return -1
            for w in range(g.write_start[op], g.write_start[op + 1]):
                u = g.write_tensor[w]
                if m.state[u] == EVICTED and m.mark[u] != mark:
                    if m.uses_left[u] > 0 or m.pins[u] > 0:
                        return -1
                    m.mark[u] = mark
                    m.stack[height] = u
                    height += 1
    return height


@njit(cache=True)
def _banish_one(heuristic: int, g: Any, m: Any) -> bool:
    """Give up one tensor that cannot be recomputed, and with it second runs of its readers."""
    for t in range(m.state.size):
        if m.state[t] != RESIDENT or m.place[t] >= 0 or g.tensor_bytes[t] == 0:
            continue
        if m.uses_left[t] > 0 or m.pins[t] > 0:
            continue
        count = _banished_with(t, g, m)
        if count < 0:
            continue
        lost = np.empty(count, np.int64)
        for k in range(count):
            lost[k] = m.stack[k]
        for k in range(count):
            for i in range(g.reader_start[lost[k]], g.reader_start[lost[k] + 1]):
                op = g.reader_op[i]
                m.locked[op] = True
                for w in range(g.write_start[op], g.write_start[op + 1]):
                    leave_pool(g.write_tensor[w], m)
            forget(lost[k], heuristic, g, m)
        return True
    return False


@njit(cache=True)
def _is_made(u: int, first: bool, eager: bool, g: Any, m: Any) -> bool:
    """Whether a run of the producer of `u` materialises `u`."""
    if not g.tensor_optional[u] or m.state[u] == RESIDENT or m.pins[u] > 0:
        return True
    return first and (m.uses_left[u] > 0 or not eager)


@njit(cache=True)
def _goes_first(t: int, other: int, m: Any) -> bool:
    """Whether `t` goes before `other` of the same h: it was used longer ago, or written first."""
    if m.last_access_s[t] != m.last_access_s[other]:
        return bool(m.last_access_s[t] < m.last_access_s[other])
    return t < other


@njit(cache=True)
def _worst(heuristic: int, times: Any, g: Any, m: Any) -> int:
    """The tensor in the pool with the least h; -1 where all tensors are pinned.

    `times` are the time now, and the least time for which a tensor counts as idle.
    """
    clock_s, tick_s = times[0], times[1]
    best, best_h = -1, np.inf
    m.num[STEPS] += m.num[IN_POOL]
    for k in range(m.num[IN_POOL]):
        t = m.pool[k]
        size = g.tensor_bytes[t]
        if m.pins[t] > 0 or size == 0:
            continue
        h = 1.0
        if heuristic not in (H_SIZE, H_LRU):
            h = g.op_time_s[g.tensor_producer[t]]
            if heuristic == H_DTR_EQ:
                h += groups_s(t, g, m)
            elif heuristic != H_LOCAL:
                if m.stale[t]:
                    m.num[STAMP] += 1
                    m.cached[t] = walk_up(t, g, m)
                    if heuristic != H_MSPS:
                        m.cached[t] += walk_down(t, g, m)
                    m.stale[t] = False
                h += m.cached[t]
        if heuristic not in (H_LRU, H_NEIGHBOURHOOD):
            h /= size
        if heuristic not in (H_SIZE, H_MSPS, H_NEIGHBOURHOOD):
            h /= max(clock_s - m.last_access_s[t], tick_s)
        if h < best_h or (h == best_h and best >= 0 and _goes_first(t, best, m)):
            best, best_h = t, h
    return best


@njit(cache=True)
def _shared_bytes(op: int, first: bool, eager: bool, evicting: bool, g: Any, m: Any) -> int:
    """Bytes that outputs take over from inputs that this run is the last to use.

    These are the inputs that will be dropped after the run; with `evicting`, all that can be.
    """
    shared = 0
    for w in range(g.write_start[op], g.write_start[op + 1]):
        u = g.write_tensor[w]
        t = g.tensor_takes_over[u]
        if t < 0 or m.pins[t] != 1 or not _is_made(u, first, eager, g, m):
            continue
        last = eager and m.uses_left[t] == first
        if (last and (m.place[t] >= 0 or g.last_need[t] <= m.num[NOW])) or (
            evicting and m.place[t] >= 0
        ):
            shared += min(g.tensor_bytes[u], g.tensor_bytes[t])
    return shared


@njit(cache=True)
def _room_bytes(op: int, first: bool, eager: bool, g: Any, m: Any) -> int:
    """Bytes that a run of `op` adds to memory: outputs that are not there yet, and workspace."""
    room = 0
    workspace = g.op_workspace_bytes[op]
    for w in range(g.write_start[op], g.write_start[op + 1]):
        u = g.write_tensor[w]
        if _is_made(u, first, eager, g, m):
            if g.tensor_optional[u]:
                workspace = max(workspace, g.op_saving_workspace_bytes[op])
            if m.state[u] != RESIDENT:
                room += g.tensor_bytes[u]
    return int(room + workspace)


@njit(cache=True)
def _make_room(op: int, first: bool, times: Any, rules: Any, g: Any, m: Any) -> Any:
    """Evict until `op` fits: (whether it then does, whether the run drops its inputs)."""
    budget_bytes, heuristic, eager = rules
    evicting = False
    while True:
        needed = m.num[USED] + _room_bytes(op, first, eager, g, m)
        if needed - _shared_bytes(op, first, eager, evicting, g, m) <= budget_bytes:
            return True, evicting
        # To evict a tensor that the run is about to write again would free nothing.
        for w in range(g.write_start[op], g.write_start[op + 1]):
            m.pins[g.write_tensor[w]] += not g.tensor_optional[g.write_tensor[w]]
        worst = _worst(heuristic, times, g, m)
        for w in range(g.write_start[op], g.write_start[op + 1]):
            m.pins[g.write_tensor[w]] -= not g.tensor_optional[g.write_tensor[w]]
        if worst >= 0:
            evict(worst, heuristic, g, m)
        elif not evicting:
            evicting = True
        elif not (eager and _banish_one(heuristic, g, m)):
            return False, evicting


@njit(cache=True)
def _account(
    op: int, first: bool, dropping: bool, now_s: float, rules: Any, g: Any, m: Any
) -> None:
    """Account for a run of `op`: its outputs enter memory, what nobody will read leaves it."""
    _, heuristic, eager = rules
    m.ran[op] = True
    if g.op_once[op]:
        m.locked[op] = True
    for r in range(g.read_start[op], g.read_start[op + 1]):
        t = g.read_tensor[r]
        m.pins[t] -= 1
        m.uses_left[t] -= first
        m.last_access_s[t] = now_s
        if eager and m.uses_left[t] == 0 and m.pins[t] == 0 and m.place[t] >= 0:
            evict(t, heuristic, g, m)
    for w in range(g.write_start[op], g.write_start[op + 1]):
        u = g.write_tensor[w]
        t = g.tensor_takes_over[u]
        if dropping and t >= 0 and m.pins[t] == 0 and m.place[t] >= 0:
            evict(t, heuristic, g, m)
        m.last_access_s[u] = now_s
        if m.state[u] == RESIDENT or not _is_made(u, first, eager, g, m):
            continue
        if not eager or m.uses_left[u] > 0 or m.pins[u] > 0:
            enter(u, heuristic, g, m)


@njit(cache=True)
def replay(g: Any, rules: Any, num_steps: int, limits: Any) -> Any:
    """Run the first `num_steps` ops in order within the budget, evicting where memory is short.

    `g` is a `Dataflow`, `rules` are `EvictionRules`; `limits` are the most runs and the most steps
    of walks. Returns (code, runs, state of each tensor).
    """
    _, heuristic, eager = rules
    num_ops, num_tensors = g.op_time_s.size, g.tensor_bytes.size
    num_nodes = 2 * num_tensors + 16
    m = Memory(
        np.zeros(num_tensors, np.int8),
        np.zeros(num_tensors, np.int32),
        np.zeros(num_tensors, np.int32),
        np.zeros(num_tensors, np.float64),
        np.full(num_tensors, -1, np.int32),
        np.full(num_tensors, -1, np.int64),
        np.ones(num_tensors, np.bool_),
        np.zeros(num_tensors, np.float64),
        np.zeros(num_tensors, np.int64),
        np.empty(num_tensors + 1, np.int64),
        np.zeros(num_ops, np.bool_),
        np.zeros(num_ops, np.bool_),
        np.zeros(num_ops, np.int64),
        np.empty(num_tensors, np.int64),
        np.zeros(num_nodes, np.int64),
        np.zeros(num_nodes, np.float64),
        np.zeros(num_nodes, np.int64),
        np.zeros(6, np.int64),
    )
    # A tensor used just now has been idle for no time: the least op time stands in for zero.
    times = np.zeros(2)
    for op in range(num_ops):
        if g.op_time_s[op] > 0 and (times[1] == 0 or g.op_time_s[op] < times[1]):
            times[1] = g.op_time_s[op]
    if times[1] == 0:
        times[1] = 1.0
    for t in range(num_tensors):
        m.uses_left[t] = g.reader_start[t + 1] - g.reader_start[t] + g.tensor_result[t]
        if g.tensor_producer[t] < 0 and m.uses_left[t] > 0:
            enter(t, heuristic, g, m)
    runs = np.empty(2 * num_ops + 16, np.int32)
    made = 0
    frame_op = np.empty(num_ops + 2, np.int64)
    frame_read = np.empty(num_ops + 2, np.int64)
    num_ended = 0
    for step in range(num_steps + (num_tensors if num_steps == num_ops else 0)):
        if step < num_steps:
            frame_op[0] = step
        else:
            # At the end, all results are wanted at once.
            t = step - num_steps
            if not g.tensor_result[t]:
                continue
            m.pins[t] += 1
            if m.state[t] == RESIDENT:
                continue
            frame_op[0] = g.tensor_producer[t]
        frame_read[0] = -1
        depth = 0
        while depth >= 0:
            op = frame_op[depth]
            if frame_read[depth] < 0:
                if m.locked[op]:
                    return LOST, runs[:made], m.state
                for r in range(g.read_start[op], g.read_start[op + 1]):
                    m.pins[g.read_tensor[r]] += 1
                frame_read[depth] = g.read_start[op]
            missing = -1
            while missing < 0 and frame_read[depth] < g.read_start[op + 1]:
                t = g.read_tensor[frame_read[depth]]
                if m.state[t] == RESIDENT:
                    frame_read[depth] += 1
                else:
                    missing = t
            if missing >= 0:
                if g.tensor_producer[missing] < 0:
                    return LOST, runs[:made], m.state
                depth += 1
                frame_op[depth] = g.tensor_producer[missing]
                frame_read[depth] = -1
                continue
            first = not m.ran[op]
            # A tensor that only this step may still need is needed until the step's own op runs.
            m.num[NOW] = step if depth == 0 else step - 1
            fits, dropping = _make_room(op, first, times, rules, g, m)
            if not fits:
                return NO_ROOM, runs[:made], m.state
            if made >= limits[0] or m.num[STEPS] > limits[1]:
                return TOO_LONG, runs[:made], m.state
            runs = _grown(runs, made + 1)
            runs[made] = op
            made += 1
            times[0] += g.op_time_s[op]
            _account(op, first, dropping, times[0], rules, g, m)
            depth -= 1
        while eager and num_ended < num_tensors and g.last_need[g.needs_ended[num_ended]] <= step:
            t = g.needs_ended[num_ended]
            if not g.tensor_result[t]:
                forget(t, heuristic, g, m)
            num_ended += 1
    return DONE, runs[:made], m.state
