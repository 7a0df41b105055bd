"""The state that `dtr` keeps of each tensor: in memory or evicted, with its evicted neighbourhood.

The functions are compiled by numba on first use, because the eviction loop calls them for every
tensor that a run reads or writes; the machine code is cached on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Codes, Flags, Ints, Reals, Record, ShortInts

# Heuristics, by code.
H_DTR, H_DTR_EQ, H_LOCAL, H_LRU, H_SIZE, H_MSPS, H_NEIGHBOURHOOD = range(7)

# States of a tensor: not written yet, or dead for good; in memory; written, not in memory.
GONE, RESIDENT, EVICTED = range(3)


@dataclass(frozen=True, eq=False)
class Dataflow(Record):
    """The arrays of a graph that the loop reads; lists of lists are stored in compressed form."""

    op_time_s: Reals
    op_workspace_bytes: Ints
    op_saving_workspace_bytes: Ints
    op_once: Flags
    read_start: Ints
    read_tensor: Ints
    write_start: Ints
    write_tensor: Ints
    reader_start: Ints
    reader_op: Ints
    tensor_bytes: Ints
    tensor_producer: Ints
    tensor_optional: Flags
    tensor_result: Flags
    tensor_takes_over: Ints
    last_need: Ints
    """(num_tensors,) the last op, by index, that can need the tensor through any recomputation."""
    needs_ended: Ints
    """(num_tensors,) tensors by ascending `last_need`."""


@dataclass(frozen=True, eq=False)
class EvictionRules(Record):
    """The settings of the loop."""

    budget_bytes: int
    """The budget without static bytes."""
    heuristic: int
    eager: bool
    """Whether a tensor leaves memory as soon as nobody will read it again."""
    most_runs: int
    most_steps: int
    """Of walks through evicted tensors."""


@dataclass(frozen=True, eq=False)
class Memory(Record):
    """The state of each tensor, of each op, and of the groups of evicted tensors."""

    state: Codes
    pins: ShortInts  # number of ops under way that read it
    uses_left: ShortInts  # first runs of its readers still to come, and one for a result
    last_access_s: Reals
    place: ShortInts  # its place in the pool; -1 outside of the pool
    node: Ints  # its node in the union-find of evicted tensors
    stale: Flags  # whether `cached` must be computed anew
    cached: Reals  # time of its evicted neighbourhood
    mark: Ints  # stamps of walks
    stack: Ints  # stack of walks
    ran: Flags
    locked: Flags  # whether the op cannot run again
    op_mark: Ints
    pool: Ints  # evictable tensors in memory, in no order
    parent: Ints
    cost: Reals  # of a group, at its root
    node_mark: Ints
    num: Ints  # counters, by the indices below
    renamed: Ints  # a group's number after the groups are numbered afresh
    renamed_cost: Reals
    lost: Ints  # tensors that are given up together
    frame_op: Ints  # stack of the ops under way
    frame_read: Ints  # the next read of each; -1 before the first
    times: Reals  # the time now, and the least time for which a tensor counts as idle


USED, IN_POOL, STAMP, NOW, STEPS, NODES = range(6)


def empty_memory(num_ops: int, num_tensors: int) -> Memory:
    """The state before the first op: nothing is in memory, and nobody is known to read anything."""
    num_nodes = 2 * num_tensors + 16
    return Memory(
        state=np.zeros(num_tensors, np.int8),
        pins=np.zeros(num_tensors, np.int32),
        uses_left=np.zeros(num_tensors, np.int32),
        last_access_s=np.zeros(num_tensors),
        place=np.full(num_tensors, -1, np.int32),
        node=np.full(num_tensors, -1, np.int64),
        stale=np.ones(num_tensors, np.bool_),
        cached=np.zeros(num_tensors),
        mark=np.zeros(num_tensors, np.int64),
        stack=np.empty(num_tensors + 1, np.int64),
        ran=np.zeros(num_ops, np.bool_),
        locked=np.zeros(num_ops, np.bool_),
        op_mark=np.zeros(num_ops, np.int64),
        pool=np.empty(num_tensors, np.int64),
        parent=np.zeros(num_nodes, np.int64),
        cost=np.zeros(num_nodes),
        node_mark=np.zeros(num_nodes, np.int64),
        num=np.zeros(6, np.int64),
        renamed=np.empty(num_nodes, np.int64),
        renamed_cost=np.empty(num_nodes),
        lost=np.empty(num_tensors + 1, np.int64),
        frame_op=np.empty(num_ops + 2, np.int64),
        frame_read=np.empty(num_ops + 2, np.int64),
        times=np.zeros(2),
    )


@kernel
def set_last_needs(g: Dataflow) -> None:
    """Set the last op, by index, that can need each tensor through any recomputation; O(reads).

    -1 for a tensor that nobody reads; the number of ops where a result may need it at the end.
    """
    num_ops, need = g.op_once.size, g.last_need
    for t in range(need.size):
        need[t] = num_ops if g.tensor_result[t] else -1
    for op in range(num_ops - 1, -1, -1):
        last = op
        if not g.op_once[op]:
            for w in range(g.write_start[op], g.write_start[op + 1]):
                last = max(last, need[g.write_tensor[w]])
        for r in range(g.read_start[op], g.read_start[op + 1]):
            need[g.read_tensor[r]] = max(need[g.read_tensor[r]], last)


@kernel
def _root(parent: Ints, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@kernel
def walk_up(t: int, g: Dataflow, m: Memory) -> float:
    """Time to recompute the evicted ancestors of `t`; resident tensors at the border turn stale."""
    mark = m.num[STAMP]
    total, height = 0.0, 1
    m.stack[0] = t
    while height:
        height -= 1
        op = g.tensor_producer[m.stack[height]]
        for r in range(g.read_start[op], g.read_start[op + 1]):
            u = g.read_tensor[r]
            m.num[STEPS] += 1
            made_by = g.tensor_producer[u]
            if m.state[u] == RESIDENT:
                m.stale[u] = True
            elif m.state[u] == EVICTED and m.op_mark[made_by] != mark:
                m.op_mark[made_by] = mark
                total += g.op_time_s[made_by]
                m.stack[height] = u
                height += 1
    return total


@kernel
def walk_down(t: int, g: Dataflow, m: Memory) -> float:
    """Time to recompute the evicted descendants of `t`; resident ones at the border turn stale."""
    mark = m.num[STAMP]
    total, height = 0.0, 1
    m.stack[0] = t
    while height:
        height -= 1
        t = m.stack[height]
        for k in range(g.reader_start[t], g.reader_start[t + 1]):
            op = g.reader_op[k]
            if not m.ran[op]:
                continue
            for w in range(g.write_start[op], g.write_start[op + 1]):
                u = g.write_tensor[w]
                m.num[STEPS] += 1
                if m.state[u] == RESIDENT:
                    m.stale[u] = True
                elif m.state[u] == EVICTED and m.mark[u] != mark:
                    m.mark[u] = mark
                    if m.op_mark[op] != mark:
                        m.op_mark[op] = mark
                        total += g.op_time_s[op]
                    m.stack[height] = u
                    height += 1
    return total


@kernel
def _group_cost(u: int, mark: int, m: Memory) -> float:
    """Time of the evicted group of `u`; zero where it was counted under this mark already."""
    if m.state[u] != EVICTED:
        return 0.0
    root = _root(m.parent, m.node[u])
    if m.node_mark[root] == mark:
        return 0.0
    m.node_mark[root] = mark
    return float(m.cost[root])


@kernel
def groups_s(t: int, g: Dataflow, m: Memory) -> float:
    """Time of the evicted groups beside `t`, each counted once."""
    m.num[STAMP] += 1
    mark = m.num[STAMP]
    total = 0.0
    op = g.tensor_producer[t]
    for r in range(g.read_start[op], g.read_start[op + 1]):
        total += _group_cost(g.read_tensor[r], mark, m)
    for k in range(g.reader_start[t], g.reader_start[t + 1]):
        op = g.reader_op[k]
        if m.ran[op]:
            for w in range(g.write_start[op], g.write_start[op + 1]):
                total += _group_cost(g.write_tensor[w], mark, m)
    return total


@kernel
def _compact_nodes(m: Memory) -> None:
    """Number the groups afresh, because each eviction uses up a node."""
    m.num[STAMP] += 1
    count = 0
    renamed, cost = m.renamed, m.renamed_cost
    for node in range(m.num[NODES]):
        renamed[node] = -1
    for t in range(m.state.size):
        if m.state[t] == EVICTED:
            root = _root(m.parent, m.node[t])
            if renamed[root] < 0:
                renamed[root] = count
                cost[count] = m.cost[root]
                count += 1
            m.node[t] = renamed[root]
    for node in range(count):
        m.parent[node] = node
        m.cost[node] = cost[node]
        m.node_mark[node] = 0
    m.num[NODES] = count


@kernel
def _join(node: int, u: int, m: Memory) -> None:
    if m.state[u] == EVICTED:
        root, other = _root(m.parent, node), _root(m.parent, m.node[u])
        if root != other:
            m.parent[root] = other
            m.cost[other] += m.cost[root]


@kernel
def _changed(t: int, heuristic: int, g: Dataflow, m: Memory) -> None:
    """Mark the tensors whose evicted neighbourhood `t` enters or leaves as stale."""
    if heuristic in (H_DTR, H_MSPS, H_NEIGHBOURHOOD):
        m.num[STAMP] += 1
        walk_up(t, g, m)
        m.num[STAMP] += 1
        walk_down(t, g, m)


@kernel
def leave_pool(t: int, m: Memory) -> None:
    """Take `t` out of the pool: it is no candidate for eviction any longer."""
    at = m.place[t]
    if at >= 0:
        m.num[IN_POOL] -= 1
        moved = m.pool[m.num[IN_POOL]]
        m.pool[at] = moved
        m.place[moved] = at
        m.place[t] = -1


@kernel
def enter(t: int, heuristic: int, g: Dataflow, m: Memory) -> None:
    """Enter `t` into memory: it has just been written."""
    if m.state[t] == EVICTED:
        if heuristic == H_DTR_EQ:
            # A group never splits: the tensor that comes back only subtracts its own time.
            m.cost[_root(m.parent, m.node[t])] -= g.op_time_s[g.tensor_producer[t]]
        _changed(t, heuristic, g, m)
    m.state[t] = RESIDENT
    m.stale[t] = True
    m.num[USED] += g.tensor_bytes[t]
    if g.tensor_producer[t] >= 0 and not m.locked[g.tensor_producer[t]]:
        m.place[t] = m.num[IN_POOL]
        m.pool[m.num[IN_POOL]] = t
        m.num[IN_POOL] += 1


@kernel
def evict(t: int, heuristic: int, g: Dataflow, m: Memory) -> None:
    """Evict `t`, which then joins the evicted groups beside it."""
    leave_pool(t, m)
    m.num[USED] -= g.tensor_bytes[t]
    if heuristic == H_DTR_EQ:
        if m.num[NODES] == m.parent.size:
            _compact_nodes(m)
        node = m.num[NODES]
        m.num[NODES] += 1
        op = g.tensor_producer[t]
        m.parent[node] = node
        m.cost[node] = g.op_time_s[op]
        m.node_mark[node] = 0
        for r in range(g.read_start[op], g.read_start[op + 1]):
            _join(node, g.read_tensor[r], m)
        for k in range(g.reader_start[t], g.reader_start[t + 1]):
            op = g.reader_op[k]
            if m.ran[op]:
                for w in range(g.write_start[op], g.write_start[op + 1]):
                    _join(node, g.write_tensor[w], m)
        m.node[t] = node
    m.state[t] = EVICTED
    _changed(t, heuristic, g, m)


@kernel
def forget(t: int, heuristic: int, g: Dataflow, m: Memory) -> None:
    """Note that nothing will ever need `t` again."""
    if m.state[t] == RESIDENT:
        leave_pool(t, m)
        m.num[USED] -= g.tensor_bytes[t]
    elif m.state[t] == EVICTED:
        if heuristic == H_DTR_EQ:
            m.cost[_root(m.parent, m.node[t])] -= g.op_time_s[g.tensor_producer[t]]
        _changed(t, heuristic, g, m)
    m.state[t] = GONE
