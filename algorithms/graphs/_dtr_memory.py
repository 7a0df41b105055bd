"""The state that `dtr` keeps of each tensor: in memory or evicted, with its evicted neighbourhood.

The functions are compiled by numba on first use, because the eviction loop calls them for every
tensor that a run reads or writes; the machine code is cached on disk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schedsim.kernels.cached import njit

# Heuristics, by code.
H_DTR, H_DTR_EQ, H_LOCAL, H_LRU, H_SIZE, H_MSPS, H_NEIGHBOURHOOD = range(7)

# States of a tensor: not written yet, or dead for good; in memory; written, not in memory.
GONE, RESIDENT, EVICTED = range(3)


class Dataflow(NamedTuple):
    """The arrays of a graph that the loop reads; lists of lists are stored in compressed form."""

    op_time_s: Any
    op_workspace_bytes: Any
    op_saving_workspace_bytes: Any
    op_once: Any
    read_start: Any
    read_tensor: Any
    write_start: Any
    write_tensor: Any
    reader_start: Any
    reader_op: Any
    tensor_bytes: Any
    tensor_producer: Any
    tensor_optional: Any
    tensor_result: Any
    tensor_takes_over: Any
    last_need: Any
    """(num_tensors,) the last op, by index, that can need the tensor through any recomputation."""
    needs_ended: Any
    """(num_tensors,) tensors by ascending `last_need`."""


class EvictionRules(NamedTuple):
    """The settings of the loop."""

    budget_bytes: int
    """The budget without static bytes."""
    heuristic: int
    eager: bool
    """Whether a tensor leaves memory as soon as nobody will read it again."""


class Memory(NamedTuple):
    """The state of each tensor, of each op, and of the groups of evicted tensors."""

    state: Any
    pins: Any  # number of ops under way that read it
    uses_left: Any  # first runs of its readers still to come, and one for a result
    last_access_s: Any
    place: Any  # its place in the pool; -1 outside of the pool
    node: Any  # its node in the union-find of evicted tensors
    stale: Any  # whether `cached` must be computed anew
    cached: Any  # time of its evicted neighbourhood
    mark: Any  # stamps of walks
    stack: Any  # stack of walks
    ran: Any
    locked: Any  # whether the op cannot run again
    op_mark: Any
    pool: Any  # evictable tensors in memory, in no order
    parent: Any
    cost: Any  # of a group, at its root
    node_mark: Any
    num: Any  # counters, by the indices below


USED, IN_POOL, STAMP, NOW, STEPS, NODES = range(6)


@njit(cache=True)
def last_needs(g: Any) -> Any:
    """The last op, by index, that can need each tensor through any recomputation; O(reads).

    -1 for a tensor that nobody reads; the number of ops where a result may need it at the end.
    """
    num_ops = g.op_once.size
    need = np.full(g.tensor_result.size, -1, np.int64)
    for t in range(need.size):
        if g.tensor_result[t]:
            need[t] = num_ops
    for op in range(num_ops - 1, -1, -1):
        last = op
        if not g.op_once[op]:
            for w in range(g.write_start[op], g.write_start[op + 1]):
                last = max(last, need[g.write_tensor[w]])
        for r in range(g.read_start[op], g.read_start[op + 1]):
            need[g.read_tensor[r]] = max(need[g.read_tensor[r]], last)
    return need


@njit(cache=True)
def _root(parent: Any, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@njit(cache=True)
def walk_up(t: int, g: Any, m: Any) -> float:
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


@njit(cache=True)
def walk_down(t: int, g: Any, m: Any) -> float:
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


@njit(cache=True)
def _group_cost(u: int, mark: int, m: Any) -> float:
    """Time of the evicted group of `u`; zero where it was counted under this mark already."""
    if m.state[u] != EVICTED:
        return 0.0
    root = _root(m.parent, m.node[u])
    if m.node_mark[root] == mark:
        return 0.0
    m.node_mark[root] = mark
    return float(m.cost[root])


@njit(cache=True)
def groups_s(t: int, g: Any, m: Any) -> float:
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


@njit(cache=True)
def _compact_nodes(m: Any) -> None:
    """Number the groups afresh, because each eviction uses up a node."""
    m.num[STAMP] += 1
    count = 0
    renamed = np.full(m.num[NODES], -1, np.int64)
    cost = np.zeros(m.num[NODES], np.float64)
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


@njit(cache=True)
def _join(node: int, u: int, m: Any) -> None:
    if m.state[u] == EVICTED:
        root, other = _root(m.parent, node), _root(m.parent, m.node[u])
        if root != other:
            m.parent[root] = other
            m.cost[other] += m.cost[root]


@njit(cache=True)
def _changed(t: int, heuristic: int, g: Any, m: Any) -> None:
    """Mark the tensors whose evicted neighbourhood `t` enters or leaves as stale."""
    if heuristic in (H_DTR, H_MSPS, H_NEIGHBOURHOOD):
        m.num[STAMP] += 1
        walk_up(t, g, m)
        m.num[STAMP] += 1
        walk_down(t, g, m)


@njit(cache=True)
def leave_pool(t: int, m: Any) -> None:
    """Take `t` out of the pool: it is no candidate for eviction any longer."""
    at = m.place[t]
    if at >= 0:
        m.num[IN_POOL] -= 1
        moved = m.pool[m.num[IN_POOL]]
        m.pool[at] = moved
        m.place[moved] = at
        m.place[t] = -1


@njit(cache=True)
def enter(t: int, heuristic: int, g: Any, m: Any) -> None:
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


@njit(cache=True)
def evict(t: int, heuristic: int, g: Any, m: Any) -> None:
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


@njit(cache=True)
def forget(t: int, heuristic: int, g: Any, m: Any) -> None:
    """Note that nothing will ever need `t` again."""
    if m.state[t] == RESIDENT:
        leave_pool(t, m)
        m.num[USED] -= g.tensor_bytes[t]
    elif m.state[t] == EVICTED:
        if heuristic == H_DTR_EQ:
            m.cost[_root(m.parent, m.node[t])] -= g.op_time_s[g.tensor_producer[t]]
        _changed(t, heuristic, g, m)
    m.state[t] = GONE
