"""The eviction loop behind `dtr`: runs of ops in order, evictions, recomputations.

The loop is compiled by numba on first use, because it looks at every tensor in memory at every
eviction; the machine code is cached on disk.
"""

from __future__ import annotations

import numpy as np

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import ShortInts

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
    Dataflow,
    EvictionRules,
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


@kernel
def _banished_with(t: int, g: Dataflow, m: Memory) -> int:
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


@kernel
def _banish_one(heuristic: int, g: Dataflow, m: Memory) -> bool:
    """Give up one tensor that cannot be recomputed, and with it second runs of its readers."""
    for t in range(m.state.size):
        if m.state[t] != RESIDENT or m.place[t] >= 0 or g.tensor_bytes[t] == 0:
            continue
        if m.uses_left[t] > 0 or m.pins[t] > 0:
            continue
        count = _banished_with(t, g, m)
        if count < 0:
            continue
        for k in range(count):
            m.lost[k] = m.stack[k]  # what forgets a tensor walks, and walks use the stack
        for k in range(count):
            for i in range(g.reader_start[m.lost[k]], g.reader_start[m.lost[k] + 1]):
                op = g.reader_op[i]
                m.locked[op] = True
                for w in range(g.write_start[op], g.write_start[op + 1]):
                    leave_pool(g.write_tensor[w], m)
            forget(m.lost[k], heuristic, g, m)
        return True
    return False


@kernel
def _is_made(u: int, first: bool, eager: bool, g: Dataflow, m: Memory) -> bool:
    """Whether a run of the producer of `u` materialises `u`."""
    if not g.tensor_optional[u] or m.state[u] == RESIDENT or m.pins[u] > 0:
        return True
    return first and (m.uses_left[u] > 0 or not eager)


@kernel
def _goes_first(t: int, other: int, m: Memory) -> bool:
    """Whether `t` goes before `other` of the same h: it was used longer ago, or written first."""
    if m.last_access_s[t] != m.last_access_s[other]:
        return bool(m.last_access_s[t] < m.last_access_s[other])
    return t < other


@kernel
def _worst(heuristic: int, g: Dataflow, m: Memory) -> int:
    """The tensor in the pool with the least h; -1 where all tensors are pinned."""
    clock_s, tick_s = m.times[0], m.times[1]
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


@kernel
def _shared_bytes(op: int, first: bool, eager: bool, evicting: bool, g: Dataflow, m: Memory) -> int:
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


@kernel
def _room_bytes(op: int, first: bool, eager: bool, g: Dataflow, m: Memory) -> int:
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


@kernel
def _make_room(
    op: int, first: bool, rules: EvictionRules, g: Dataflow, m: Memory
) -> tuple[bool, bool]:
    """Evict until `op` fits: (whether it then does, whether the run drops its inputs)."""
    heuristic, eager = rules.heuristic, rules.eager
    evicting = False
    while True:
        needed = m.num[USED] + _room_bytes(op, first, eager, g, m)
        if needed - _shared_bytes(op, first, eager, evicting, g, m) <= rules.budget_bytes:
            return True, evicting
        # To evict a tensor that the run is about to write again would free nothing.
        for w in range(g.write_start[op], g.write_start[op + 1]):
            m.pins[g.write_tensor[w]] += not g.tensor_optional[g.write_tensor[w]]
        worst = _worst(heuristic, g, m)
        for w in range(g.write_start[op], g.write_start[op + 1]):
            m.pins[g.write_tensor[w]] -= not g.tensor_optional[g.write_tensor[w]]
        if worst >= 0:
            evict(worst, heuristic, g, m)
        elif not evicting:
            evicting = True
        elif not (eager and _banish_one(heuristic, g, m)):
            return False, evicting


@kernel
def _account(
    op: int, first: bool, dropping: bool, rules: EvictionRules, g: Dataflow, m: Memory
) -> None:
    """Account for a run of `op`: its outputs enter memory, what nobody will read leaves it."""
    heuristic, eager = rules.heuristic, rules.eager
    now_s = m.times[0]
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


@kernel
def replay(
    g: Dataflow, rules: EvictionRules, num_steps: int, m: Memory, runs: ShortInts
) -> tuple[int, int]:
    """Run the first `num_steps` ops in order within the budget, evicting where memory is short.

    `m` is `empty_memory`, and holds the state at the end afterwards. Returns (how it ended, number
    of runs), of which `runs` holds the first.
    """
    heuristic, eager = rules.heuristic, rules.eager
    num_ops, num_tensors = g.op_time_s.size, g.tensor_bytes.size
    # A tensor used just now has been idle for no time: the least op time stands in for zero.
    times = m.times
    for op in range(num_ops):
        if g.op_time_s[op] > 0 and (times[1] == 0 or g.op_time_s[op] < times[1]):
            times[1] = g.op_time_s[op]
    if times[1] == 0:
        times[1] = 1.0
    for t in range(num_tensors):
        m.uses_left[t] = g.reader_start[t + 1] - g.reader_start[t] + g.tensor_result[t]
        if g.tensor_producer[t] < 0 and m.uses_left[t] > 0:
            enter(t, heuristic, g, m)
    made = 0
    frame_op, frame_read = m.frame_op, m.frame_read
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
                    return LOST, made
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
                    return LOST, made
                depth += 1
                frame_op[depth] = g.tensor_producer[missing]
                frame_read[depth] = -1
                continue
            first = not m.ran[op]
            # A tensor that only this step may still need is needed until the step's own op runs.
            m.num[NOW] = step if depth == 0 else step - 1
            fits, dropping = _make_room(op, first, rules, g, m)
            if not fits:
                return NO_ROOM, made
            if made >= rules.most_runs or m.num[STEPS] > rules.most_steps:
                return TOO_LONG, made
            runs[made] = op
            made += 1
            times[0] += g.op_time_s[op]
            _account(op, first, dropping, rules, g, m)
            depth -= 1
        while eager and num_ended < num_tensors and g.last_need[g.needs_ended[num_ended]] <= step:
            t = g.needs_ended[num_ended]
            if not g.tensor_result[t]:
                forget(t, heuristic, g, m)
            num_ended += 1
    return DONE, made
