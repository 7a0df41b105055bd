"""What the graph planners of the field promise, on random graphs and against the oracle."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs.chen_articulation import chen_articulation
from schedsim.algorithms.graphs.dtr import HEURISTICS, dtr
from schedsim.algorithms.graphs.kusumoto import kusumoto
from schedsim.algorithms.graphs.saved_bytes import saved_bytes
from tiers import examples
from training_graphs import (
    check_against_oracle,
    check_graph_plan,
    random_training_graph,
    some_budget,
)

from schedsim import Graph, Op, Schedule, UnsupportedError, simulate
from schedsim.api import try_plan

PLANNERS = {
    **{f"dtr {name}": partial(dtr, heuristic=name) for name in HEURISTICS},
    "dtr never": partial(dtr, deallocation="never"),
    "chen": chen_articulation,
    "chen all": partial(chen_articulation, candidates="all"),
    "kusumoto": kusumoto,
    "kusumoto exact": partial(kusumoto, family="exact", num_limits=8),
    "kusumoto memory": partial(kusumoto, objective="memory", num_limits=8),
    "saved bytes": partial(saved_bytes, num_fractions=10),
}
each_planner = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)


@each_planner
@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 6))
@settings(max_examples=examples(60))
def test_no_plan_beats_the_oracle_on_any_graph(planner, seed, num_ops):
    """Graphs of up to six ops without structure: several outputs, optional, once, in place."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    check_against_oracle(planner, graph, some_budget(rng, graph))


@each_planner
@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 3))
@settings(max_examples=examples(40))
def test_no_plan_beats_the_oracle_on_training_graphs(planner, seed, num_forward):
    """Up to three forward ops, the loss, and their backward."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num_forward)
    check_against_oracle(planner, graph, some_budget(rng, graph))


@each_planner
@given(seed=st.integers(0, 10**9), num_forward=st.integers(4, 30))
@settings(max_examples=examples(40))
def test_plans_keep_their_promises(planner, seed, num_forward):
    """Larger training graphs: within the budget in the replay, first runs in order, repeatable."""
    if planner is PLANNERS["kusumoto exact"]:
        num_forward = min(num_forward, 10)  # wide graphs have too many lower sets
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num_forward)
    check_graph_plan(planner, graph, some_budget(rng, graph))


@each_planner
def test_where_all_fits_nothing_is_recomputed(planner):
    """At the store-all peak of a graph with nothing special the plan is optimal."""
    graph = _plain_chain()
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = planner(graph, peak)
    if planner is not PLANNERS["dtr never"]:  # that one holds what is never read again
        assert plan.status == "optimal"
        assert plan.makespan_s == graph.store_all_s


@pytest.mark.parametrize("name", ["dtr", "chen_articulation", "kusumoto", "saved_bytes"])
def test_a_graph_of_one_op(name):
    """No tensors, no backward; and a budget of nothing."""
    graph = Graph("one", (Op("f", time_s=1, workspace_bytes=3),))
    assert try_plan(graph, 3, name).makespan_s == 1
    refused = try_plan(graph, 2, name)
    assert refused.status == "infeasible"
    assert refused.min_feasible_bytes in (3, None)


@pytest.mark.parametrize("name", ["dtr", "chen_articulation", "kusumoto", "saved_bytes"])
def test_a_graph_that_begins_with_its_backward(name):
    """There is nothing to recompute, and no forward part."""
    graph = Graph("b", (Op("b", "backward", 1, writes={"x": 4}), Op("f", reads=("x",))))
    assert try_plan(graph, 4, name).status == "optimal"


@pytest.mark.parametrize("name", ["dtr", "chen_articulation", "kusumoto", "saved_bytes"])
def test_what_is_not_simulated_is_refused(name):
    """A copy on a stream of its own, with the hint of the simulator."""
    ops = (Op("f", writes={"x": 4}), Op("copy", reads=("x",), writes={"h": 4}, stream="d2h"))
    with pytest.raises(UnsupportedError, match="several streams") as caught:
        try_plan(Graph("copies", ops), 100, name)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        (dtr, {"heuristic": "best"}),
        (dtr, {"deallocation": "late"}),
        (chen_articulation, {"candidates": "some"}),
        (chen_articulation, {"search": "none"}),
        (kusumoto, {"family": "small"}),
        (kusumoto, {"objective": "space"}),
        (kusumoto, {"order": "sets"}),
        (kusumoto, {"num_limits": 0}),
        (saved_bytes, {"fraction": 1.5}),
        (saved_bytes, {"num_fractions": 0}),
    ],
)
def test_unknown_options_are_refused(planner, options):
    """The error names the value."""
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        planner(_plain_chain(), 10, **options)


def _plain_chain() -> Graph:
    ops = [Op(f"f{i}", time_s=1, reads=(f"x{i}",), writes={f"x{i + 1}": 2}) for i in range(6)]
    ops.append(Op("loss", "loss", reads=("x6",), writes={"d6": 2}))
    for i in range(5, -1, -1):
        reads = (f"x{i}", f"d{i + 1}")
        ops.append(Op(f"b{i}", "backward", 1, reads=reads, writes={f"d{i}": 2}))
    return Graph("plain", tuple(ops), {"x0": 2})
