"""Orders that need less memory: legal, and greedy by bytes counted from nothing each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._greedy_order import greedy_order
from schedsim.algorithms.graphs._packed_graph import pack_graph
from tiers import examples
from training_graphs import random_training_graph

from schedsim import Graph, Op, Schedule, simulate
from schedsim.kernels.compiled import in_python


def ordered(graph: Graph, patience: float) -> list[int]:
    return in_python(greedy_order)(pack_graph(graph.arrays), patience).tolist()


def alive_bytes(graph: Graph, done: list[int]) -> int:
    """Inputs and tensors made that are results, or that an op to come reads."""
    made = [*graph.inputs, *(tensor for op in done for tensor in graph.ops[op].writes)]
    wanted = {t for i, op in enumerate(graph.ops) if i not in done for t in op.reads}
    return sum(graph.size_of(t) for t in made if t in wanted or t in graph.results)


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 5))
def test_each_op_leaves_the_fewest_bytes(seed, num):
    """The op chosen among those that may run next; of several, the first in the file's order."""
    graph = random_training_graph(np.random.default_rng(seed), num)
    order = ordered(graph, 0.0)
    simulate(graph, Schedule(graph.op_names, order))  # raises where it is illegal
    assert sorted(order) == list(range(graph.num_ops))
    makers = [{graph.producer(t) for t in op.reads} - {None} for op in graph.ops]
    for place, op in enumerate(order):
        done = order[:place]
        ready = [i for i in range(graph.num_ops) if i not in done and makers[i] <= set(done)]
        assert op == min(ready, key=lambda i: (alive_bytes(graph, [*done, i]), i))


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_all_patience_keeps_the_order_of_the_file(seed):
    """Which is an order that is legal."""
    graph = random_training_graph(np.random.default_rng(seed), 6)
    assert ordered(graph, 1e9) == list(range(graph.num_ops))


@pytest.mark.parametrize(("patience", "want"), [(0.0, [0, 2, 3, 1, 4]), (1e9, [0, 1, 2, 3, 4])])
def test_what_frees_bytes_comes_first(patience, want):
    """h turns 50 bytes into 1 and i that one into 3, while g adds 19."""
    ops = (
        Op("f", writes={"x": 50, "y": 1}),
        Op("g", reads=("y",), writes={"z": 20}),
        Op("h", reads=("x",), writes={"s": 1}),
        Op("i", reads=("s",), writes={"u": 3}),
        Op("j", reads=("z", "u")),
    )
    assert ordered(Graph("fork", ops), patience) == want
