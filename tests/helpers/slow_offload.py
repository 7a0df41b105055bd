"""The least time of a step that may keep, recompute and copy, over all ways in time: an oracle.

A state is what lies where, what has run, and what runs with the seconds left. From it any op or
copy may start whose stream is free, whose inputs are there and whose memory can be made to fit by
evicting tensors; or time passes to the next end, runs held back at will included. Dijkstra's
algorithm finds the least time. There is no order of a schedule and no rule of who starts first; but
first runs come in the graph's order.
"""

from __future__ import annotations

import heapq
from functools import cache
from itertools import combinations

from schedsim import Graph
from schedsim.plans.offloading import Offloading


def subsets(items: frozenset[int]) -> list[frozenset[int]]:
    """All of them, the empty one first."""
    return [
        frozenset(chosen)
        for count in range(len(items) + 1)
        for chosen in combinations(sorted(items), count)
    ]


def least_time_s(
    graph: Graph, budget_bytes: int, offloading: Offloading, *, max_states: int = 400_000
) -> float | None:
    """The optimum; infinite where nothing fits, ``None`` beyond `max_states`. Whole times only."""
    arrays = graph.arrays
    size = arrays.tensor_bytes.tolist()
    room = budget_bytes - graph.static_bytes
    host_room = 2**62 if offloading.host_bytes is None else offloading.host_bytes
    index = {name: i for i, name in enumerate(arrays.tensor_names)}
    reads = [frozenset(index[t] for t in op.reads) for op in graph.ops]
    solid = [frozenset(index[t] for t in op.writes if t not in op.optional) for op in graph.ops]
    optional = [frozenset(index[t] for t in op.optional) for op in graph.ops]
    results = frozenset(index[t] for t in graph.results)
    everything = (1 << graph.num_ops) - 1
    # A state: on the device, on the host, done, (compute, to the host, back). What runs is a tuple
    # (what, seconds left, outputs, workspace); its outputs are not yet on the device.
    start = (frozenset(range(len(graph.inputs))), frozenset(), 0, (None, None, None))

    def left_s(done: int) -> float:
        return sum(op.time_s for i, op in enumerate(graph.ops) if not done >> i & 1)

    def device_bytes(state) -> int:
        here, _, _, running = state
        total = sum(size[t] for t in here)
        if running[0]:
            total += sum(size[t] for t in running[0][2]) + running[0][3]
        if running[2]:
            total += size[running[2][0]]
        return total

    def host_bytes(state) -> int:
        return sum(size[t] for t in state[1]) + (size[state[3][1][0]] if state[3][1] else 0)

    @cache
    def wanted(done: int) -> frozenset[int]:
        """Tensors read by an op that has not run, or by one that may run again for it."""
        found = set(results)
        for i in range(graph.num_ops - 1, -1, -1):
            if not done >> i & 1 or (solid[i] | optional[i]) & found:
                found |= reads[i]
        return frozenset(found)

    def tidy(state):
        """The state without what no later run reads; evicting it later would be no better."""
        here, there, done, running = state
        useful = wanted(done)
        here = here & useful | {running[1][0]} if running[1] else here & useful
        if running[0]:
            here |= state[0] & reads[running[0][0]]
        there = (there & useful) | ({running[2][0]} if running[2] else frozenset())
        return (here, there, done, running)

    def held(state) -> frozenset[int]:
        """Tensors that something running reads."""
        running = state[3]
        found = reads[running[0][0]] if running[0] else frozenset()
        return found | ({running[1][0]} if running[1] else frozenset())

    def make_room(state, need: int, keep: frozenset[int]):
        """Device contents that leave `need` bytes, no tensor evicted for nothing."""
        here = state[0]
        lacking = device_bytes(state) + need - room
        if lacking <= 0:
            yield here
            return
        loose = sorted(here - keep)
        for count in range(1, len(loose) + 1):
            for gone in combinations(loose, count):
                freed = sum(size[t] for t in gone)
                if freed >= lacking and all(freed - size[t] < lacking for t in gone):
                    yield here - set(gone)

    def make_host_room(state, need: int):
        there = state[1]
        busy = {state[3][2][0]} if state[3][2] else set()
        lacking = host_bytes(state) + need - host_room
        if lacking <= 0:
            yield there
            return
        loose = sorted(there - busy)
        for count in range(1, len(loose) + 1):
            for gone in combinations(loose, count):
                freed = sum(size[t] for t in gone)
                if freed >= lacking and all(freed - size[t] < lacking for t in gone):
                    yield there - set(gone)

    def moves(state):
        here, there, done, running = state
        using = held(state)
        if running[0] is None:
            for i, op in enumerate(graph.ops):
                if not reads[i] <= here or (op.once and done >> i & 1):
                    continue
                if not done >> i & 1 and (done + 1) & ((1 << i) - 1):
                    continue  # first runs keep the graph's order
                writes = solid[i] | optional[i]
                if done >> i & 1 and not (writes & wanted(done)) - here:
                    continue
                if running[2] and running[2][0] in writes:
                    continue
                for saved in subsets(optional[i]):
                    makes = solid[i] | saved
                    if (using | reads[i]) & makes:
                        continue
                    space = op.workspace_bytes
                    if saved and op.saving_workspace_bytes is not None:
                        space = op.saving_workspace_bytes
                    base = (here - makes, there, done, running)
                    need = sum(size[t] for t in makes) + space
                    for kept in make_room(base, need, using | reads[i]):
                        now = (i, op.time_s, makes, space)
                        yield 0.0, (kept, there, done, (now, *running[1:]))
        if running[1] is None:
            for t in here - there:
                if size[t] and t in wanted(done):
                    for kept in make_host_room(state, size[t]):
                        now = (t, offloading.d2h.time_s(size[t]))
                        yield 0.0, (here, kept, done, (running[0], now, running[2]))
        if running[2] is None:
            for t in there - here:
                if running[0] and t in running[0][2]:
                    continue
                for kept in make_room(state, size[t], using):
                    now = (t, offloading.h2d.time_s(size[t]))
                    yield 0.0, (kept, there, done, (*running[:2], now))
        active = [one[1] for one in running if one]
        if active:
            step = min(active)
            after = [None, None, None]
            for q, one in enumerate(running):
                if one is None:
                    continue
                if one[1] > step:
                    after[q] = (one[0], one[1] - step, *one[2:])
                elif q == 0:
                    here, done = here | one[2], done | 1 << one[0]
                elif q == 1:
                    there = there | {one[0]}
                else:
                    here = here | {one[0]}
            yield step, (here, there, done, tuple(after))

    best = {start: 0.0}
    seen: dict = {}
    queue = [(left_s(0), 0.0, 0, start)]
    pushed = expanded = 0
    while queue:
        _, spent, _, state = heapq.heappop(queue)
        if spent > best[state]:
            continue
        if state[2] == everything and state[3] == (None, None, None) and results <= state[0]:
            return spent
        others = seen.setdefault((state[2], state[3]), [])
        if any(t <= spent and state[0] <= h and state[1] <= a for h, a, t in others):
            continue  # there is more where that is, no later; evicting it is free
        others.append((state[0], state[1], spent))
        expanded += 1
        if expanded > max_states:
            return None
        for lasts, made in moves(state):
            after = tidy(made)
            if device_bytes(after) > room or host_bytes(after) > host_room:
                continue
            total = spent + lasts
            if total < best.get(after, float("inf")):
                best[after] = total
                pushed += 1
                bound = total + left_s(after[2])
                if after[3][0]:  # what runs for the first time is not done, but has begun
                    op = after[3][0][0]
                    if not after[2] >> op & 1:
                        bound -= graph.ops[op].time_s - after[3][0][1]
                heapq.heappush(queue, (bound, total, pushed, after))
    return float("inf")
