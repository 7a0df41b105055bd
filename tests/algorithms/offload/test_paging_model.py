"""The MILP with paging: its answers fit, and by hand take the time that it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_plans import some_budget, tiny_chain
from offload_steps import random_offloading
from schedsim.algorithms.graphs.checkmate import checkmate
from schedsim.algorithms.offload._linked_graph import link_graph
from schedsim.algorithms.offload._paging_model import build_paging_model
from schedsim.algorithms.offload._timeline import evaluate, make_trace
from tiers import examples

from schedsim import Graph, Op
from schedsim.kernels.compiled import in_python
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading


def solved(graph: Graph, budget: int, offloading: Offloading):
    """(seconds that the model says, seconds and excess as evaluated, tokens); ``None`` for none."""
    linked = link_graph(graph, budget, offloading)
    room = float(budget - graph.static_bytes)
    model = build_paging_model(graph, linked, 1.0, room, 1.0, float(linked.host_room))
    answer = model.milp.solve(Effort(60.0))
    if answer.x is None:
        assert answer.infeasible
        return None
    tokens = np.array(model.tokens(graph, answer.x), dtype=np.int64)
    trace = make_trace(linked, tokens.size)
    makespan_s, excess, _ = in_python(evaluate)(linked, tokens, tokens.size, trace)
    return answer.bound, makespan_s, excess, tokens.tolist()


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 2))
def test_answers_fit_and_are_no_slower_than_without_copies(seed, num):
    """And say no more than the best without copies takes, stage by stage."""
    rng = np.random.default_rng(seed)
    graph = tiny_chain(rng, num).graph
    offloading = random_offloading(rng, whole=True)
    budget = some_budget(rng, graph)
    found = solved(graph, budget, offloading)
    without = checkmate(graph, budget)
    if found is None:
        assert not without.feasible
        return
    said_s, makespan_s, excess, tokens = found
    assert excess == 0
    assert makespan_s >= graph.store_all_s
    assert sorted({token for token in tokens if token < graph.num_ops}) == list(
        range(graph.num_ops)
    )
    if without.feasible:
        assert said_s <= without.makespan_s * (1 + 1e-4) + 1e-3


def away_at_the_loss() -> Graph:
    """x (8 bytes) cannot be made again, and the loss leaves no room for it."""
    ops = (
        Op("f", time_s=4, writes={"x": 8}, once=True),
        Op("g", time_s=6, writes={"y": 1}),
        Op("l", "loss", time_s=2, reads=("y",), workspace_bytes=8),
        Op("c", "backward", time_s=6, reads=("y",)),
        Op("b", "backward", time_s=4, reads=("x",)),
    )
    return Graph("away", ops)


def test_copies_flow_beside_runs():
    """Six seconds out beside g, six back beside c: the step takes no longer."""
    graph = away_at_the_loss()
    said_s, makespan_s, excess, tokens = solved(graph, 9, Offloading(Link(8 / 6), Link(8 / 6)))
    assert (makespan_s, excess) == (graph.store_all_s, 0)
    assert said_s == pytest.approx(graph.store_all_s, rel=1e-3)
    assert [token for token in tokens if token < 5] == [0, 1, 2, 3, 4]
    assert tokens[:2] == [0, 5]  # out as soon as it is there
    assert tokens.index(2) < tokens.index(7) < tokens.index(4)


def test_a_slow_link_makes_the_step_wait():
    """Eight seconds each way: two more than g and c take.

    The model is told of stages alone, in which a tensor flows while its own op still runs: it
    counts the wait for the way back, and the replay that for the way out too.
    """
    graph = away_at_the_loss()
    said_s, makespan_s, _, _ = solved(graph, 9, Offloading(Link(1), Link(1)))
    assert makespan_s == graph.store_all_s + 4
    assert said_s == pytest.approx(graph.store_all_s + 2, rel=1e-3)


def test_the_host_must_have_room():
    """Where it has not, and nothing can be made again, there is no answer."""
    graph = away_at_the_loss()
    assert solved(graph, 9, Offloading(Link(1), Link(1), 7)) is None
    assert solved(graph, 9, Offloading(Link(1), Link(1), 8)) is not None
    assert solved(graph, 17, Offloading(Link(1), Link(1), 0))[1] == graph.store_all_s
