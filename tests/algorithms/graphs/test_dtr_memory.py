"""What DTR keeps of evicted tensors: needs, neighbourhoods and groups, against sets."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_python import plain
from schedsim.algorithms.graphs import _dtr_memory as memory
from schedsim.algorithms.graphs._dtr_memory import (
    EVICTED,
    GONE,
    H_DTR,
    H_DTR_EQ,
    IN_POOL,
    NODES,
    RESIDENT,
    STAMP,
    USED,
    Memory,
    empty_memory,
)
from schedsim.algorithms.graphs.dtr import dataflow
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph


def after_a_step(graph: Graph) -> Memory:
    """All ops have run once, and nothing has entered yet."""
    state = empty_memory(graph.num_ops, graph.arrays.tensor_bytes.size)
    state.stale[:] = False
    state.ran[:] = True
    return state


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 9))
def test_the_last_op_that_can_need_a_tensor(seed, num):
    """By going from a tensor's readers to those of what they write, unless they run once."""
    graph = random_graph(np.random.default_rng(seed), num)
    flow = dataflow(graph.arrays)
    for t, name in enumerate(graph.arrays.tensor_names):
        seen: set[int] = set()
        todo = [name]
        last = -1
        while todo:
            tensor = todo.pop()
            if tensor in graph.results:
                last = graph.num_ops
            for i, op in enumerate(graph.ops):
                if tensor in op.reads and i not in seen:
                    seen.add(i)
                    last = max(last, i)
                    todo += [] if op.once else list(op.writes)
        assert flow.last_need[t] == last
    assert np.all(np.diff(flow.last_need[flow.needs_ended]) >= 0)


class Sets:
    """The same by sets: what is in memory, what is evicted, and the groups of that."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, graph.arrays.tensor_names
        self.resident: set[str] = set()
        self.evicted: set[str] = set()
        self.groups: list[list] = []  # [tensors, seconds]

    def time_s(self, tensor: str) -> float:
        return self.graph.ops[self.graph.producer(tensor)].time_s

    def above(self, tensor: str) -> set[str]:
        return set(self.graph.ops[self.graph.producer(tensor)].reads)

    def below(self, tensor: str) -> set[str]:
        return {t for op in self.graph.ops if tensor in op.reads for t in op.writes}

    def evict(self, tensor: str) -> None:
        beside = self.above(tensor) | self.below(tensor)
        joined = [group for group in self.groups if group[0] & beside]
        self.groups = [group for group in self.groups if not group[0] & beside]
        tensors = {tensor}.union(*(group[0] for group in joined))
        self.groups.append([tensors, self.time_s(tensor) + sum(group[1] for group in joined)])
        self.resident.discard(tensor)
        self.evicted.add(tensor)

    def enter(self, tensor: str) -> None:
        for group in self.groups:
            if tensor in group[0]:
                group[0].discard(tensor)
                group[1] -= self.time_s(tensor)
        self.evicted.discard(tensor)
        self.resident.add(tensor)

    def walked(self, tensor: str, step) -> float:
        """Seconds of the ops behind the evicted tensors that `step` leads to, one after another."""
        found: set[str] = set()
        todo = [tensor]
        while todo:
            more = (step(todo.pop()) & self.evicted) - found
            found |= more
            todo += more
        return sum(self.graph.ops[op].time_s for op in {self.graph.producer(t) for t in found})

    def groups_s(self, tensor: str) -> float:
        beside = (self.above(tensor) | self.below(tensor)) & self.evicted
        return sum(group[1] for group in self.groups if group[0] & beside)


def plain_graph(rng, num: int) -> Graph:
    """A training graph of ops that all may run again, without graph inputs."""
    graph = random_training_graph(rng, num)
    ops = []
    for op in graph.ops:
        reads = tuple(t for t in op.reads if t not in graph.inputs)
        fields = {"once": False, "in_place": {}, "optional": (), "reads": reads}
        ops.append(type(op)(op.name, op.phase, op.time_s, 0, **fields, writes=op.writes))
    return Graph("plain", tuple(ops))


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 7), eq=st.booleans())
def test_evictions_and_returns(seed, num, eq):
    """Bytes, the pool, the evicted neighbourhood and the groups, after each of many."""
    rng, heuristic = np.random.default_rng(seed), H_DTR_EQ if eq else H_DTR
    graph = plain_graph(rng, num)
    flow, state, sets = dataflow(graph.arrays), after_a_step(graph), Sets(graph)
    size = graph.arrays.tensor_bytes
    for t, name in enumerate(sets.names):
        plain(memory.enter)(t, heuristic, flow, state)
        sets.enter(name)
    for _ in range(40):
        t = int(rng.integers(len(sets.names)))
        name = sets.names[t]
        if name in sets.resident:
            plain(memory.evict)(t, heuristic, flow, state)
            sets.evict(name)
        else:
            plain(memory.enter)(t, heuristic, flow, state)
            sets.enter(name)
        assert {sets.names[i] for i in np.flatnonzero(state.state == EVICTED)} == sets.evicted
        assert {sets.names[i] for i in np.flatnonzero(state.state == RESIDENT)} == sets.resident
        assert state.num[USED] == sum(
            size[i] for i, one in enumerate(sets.names) if one in sets.resident
        )
        pool = state.pool[: state.num[IN_POOL]].tolist()
        assert {sets.names[i] for i in pool} == sets.resident
        assert [int(state.place[i]) for i in pool] == list(range(len(pool)))
        other = int(rng.integers(len(sets.names)))
        state.num[STAMP] += 1
        up = plain(memory.walk_up)(other, flow, state)
        state.num[STAMP] += 1
        down = plain(memory.walk_down)(other, flow, state)
        assert up == pytest.approx(sets.walked(sets.names[other], sets.above))
        assert down == pytest.approx(sets.walked(sets.names[other], sets.below))
        if eq:
            found = plain(memory.groups_s)(other, flow, state)
            assert found == pytest.approx(sets.groups_s(sets.names[other]))
    assert state.num[NODES] <= state.parent.size


def test_who_stands_beside_an_eviction_is_looked_at_again():
    """x2 of x1..x5 goes: x1 and x3 at the border are stale, x5 is not."""
    graph = unit_training_chain(5)
    flow, state = dataflow(graph.arrays), after_a_step(graph)
    chain = [graph.arrays.tensor_names.index(f"x{i}") for i in range(1, 6)]
    state.ran[5:] = False  # nothing but the forward has run
    for t in chain:
        plain(memory.enter)(t, H_DTR, flow, state)
    state.stale[:] = False
    plain(memory.evict)(chain[1], H_DTR, flow, state)
    assert state.stale[chain].tolist() == [True, False, True, False, False]


def test_what_is_forgotten_is_gone():
    """Its bytes are free, its place in the pool is taken, its time leaves its group."""
    graph = unit_training_chain(3)
    flow, state = dataflow(graph.arrays), after_a_step(graph)
    one, two, three = (graph.arrays.tensor_names.index(f"x{i}") for i in (1, 2, 3))
    for t in (one, two, three):
        plain(memory.enter)(t, H_DTR_EQ, flow, state)
    plain(memory.forget)(two, H_DTR_EQ, flow, state)
    assert (state.num[USED], state.num[IN_POOL], state.state[two]) == (2, 2, GONE)
    assert sorted(state.pool[:2].tolist()) == sorted([one, three])
    plain(memory.evict)(one, H_DTR_EQ, flow, state)
    group = plain(memory.groups_s)(two, flow, state)
    assert group == 1
    plain(memory.forget)(one, H_DTR_EQ, flow, state)
    assert (state.num[USED], state.state[one]) == (1, GONE)
    assert plain(memory.groups_s)(two, flow, state) == 0
