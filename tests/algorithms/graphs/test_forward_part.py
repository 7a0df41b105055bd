"""Runs that follow from what is kept of the forward part."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import forward_part
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op, Schedule, simulate


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 15), share=st.floats(0, 1))
@settings(max_examples=examples(200))
def test_any_choice_gives_a_legal_schedule(seed, num_forward, share):
    """Every forward op runs twice at the most, every other op once, first runs in order."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num_forward)
    part = forward_part(graph.arrays)
    keep = rng.random(graph.arrays.tensor_bytes.size) < share
    runs = part.runs_keeping(keep)
    simulate(graph, Schedule(graph.op_names, runs))
    counts = np.bincount(runs, minlength=graph.num_ops)
    assert counts[: part.num_ops].max() <= 2
    assert (counts[part.num_ops :] == 1).all()
    firsts = list(dict.fromkeys(runs.tolist()))
    assert firsts == sorted(firsts)


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 15))
@settings(max_examples=examples(100))
def test_keeping_what_is_read_later_recomputes_nothing(seed, num_forward):
    """Store-all, whatever else is kept."""
    graph = random_training_graph(np.random.default_rng(seed), num_forward)
    part = forward_part(graph.arrays)
    assert part.runs_keeping(part.read_after).tolist() == list(range(graph.num_ops))


def test_a_chain_of_which_every_third_is_kept():
    """Each piece between kept tensors runs again where its last tensor is first read."""
    graph = unit_training_chain(6, with_output=False)  # b_i reads x_i and d_{i + 1}
    part = forward_part(graph.arrays)
    keep = np.zeros(graph.arrays.tensor_bytes.size, dtype=bool)
    keep[[2, 5]] = True  # x3 and x6
    names = Schedule(graph.op_names, part.runs_keeping(keep)).names
    expected = "f0 f1 f2 f3 f4 f5 loss f3 f4 b5 b4 b3 f0 f1 b2 b1 b0"
    assert " ".join(names) == expected


def test_forward_ops_after_the_turn_are_not_of_the_part():
    """The part ends at the first op of another phase."""
    ops = (
        Op("f", writes={"x": 1}),
        Op("b", "backward", reads=("x",), writes={"d": 1}),
        Op("g", reads=("x",), writes={"y": 1}),
    )
    part = forward_part(Graph("mixed", ops).arrays)
    assert part.num_ops == 1
    assert part.runs_keeping(np.zeros(3, dtype=bool)).tolist() == [0, 0, 1, 2]
