"""Cuts at the first run of one op: their sides, and bounds that no schedule is below."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import random_graph
from fixed_order import fixed_order_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs._cut_table import (
    CutTable,
    _relatives,
    cut_bound,
    fixed_order_bounds,
    prices,
    tensor_costs,
)
from tiers import examples
from training_graphs import random_training_graph

from schedsim import Graph, Op, Schedule, simulate


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
@settings(max_examples=examples(60), deadline=None)
def test_relatives_are_all_that_read_and_are_read(seed, num):
    """By growing both sets until nothing is added."""
    graph = random_graph(np.random.default_rng(seed), num)
    arrays = graph.arrays
    makers = [
        {graph.op_index(one.name) for one in graph.ops if set(one.writes) & set(op.reads)}
        for op in graph.ops
    ]
    for op in range(num):
        up, down = {op}, {op}
        while True:
            more = {maker for one in up for maker in makers[one]} - up
            later = {i for i in range(num) if makers[i] & down} - down
            if not more and not later:
                break
            up |= more
            down |= later
        flow = (arrays.read_start, arrays.read_tensor, arrays.tensor_producer)
        before, after = _relatives.py_func(op, *flow)
        assert set(np.flatnonzero(before)) == up - {op}
        assert set(np.flatnonzero(after)) == down - {op}


@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), order=st.sampled_from(["fixed", "free"]))
@settings(max_examples=examples(40), deadline=None)
def test_no_schedule_repeats_less_than_a_cut_says(seed, num, order):
    """The exact knapsack of every op, and the quick ones of all ops, against the optimum."""
    graph = random_graph(np.random.default_rng(seed), num)
    costs = graph.arrays.op_time_s
    for budget in np.linspace(peak_of(graph) // 2, peak_of(graph), 4).astype(int).tolist():
        if order == "fixed":
            best = fixed_order_optimum(graph, budget)
        else:
            plan = exhaustive(graph, budget)
            best = plan.makespan_s if plan.feasible else math.inf
        table = CutTable(graph, budget, order)
        most = (best - graph.store_all_s) * (1 + 1e-9) + 1e-9
        bounds = [cut_bound(table, table.cut(op), costs) for op in range(graph.num_ops)]
        assert max(bounds) <= most
        if order == "fixed":
            assert fixed_order_bounds(graph, budget, costs).max() <= most


@given(seed=st.integers(0, 10**9), num=st.integers(2, 12))
@settings(max_examples=examples(40), deadline=None)
def test_quick_knapsacks_are_no_better_than_the_exact_one(seed, num):
    """A price a byte is a relaxation of the fractional knapsack of the same cut."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num)
    costs = graph.arrays.op_time_s + 0.5
    budget = peak_of(graph) * 3 // 4
    table = CutTable(graph, budget, "fixed")
    for op, rough in enumerate(fixed_order_bounds(graph, budget, costs).tolist()):
        assert rough <= cut_bound(table, table.cut(op), costs) * (1 + 1e-9) + 1e-9


def kept_by_a_loss() -> Graph:
    """Two tensors cross the loss: 10 bytes of 1 s, and 10 bytes of 4 s."""
    ops = (
        Op("f", time_s=1, writes={"x": 10}),
        Op("g", time_s=4, writes={"y": 10}),
        Op("loss", "loss", time_s=1, workspace_bytes=3, writes={"d": 2}),
        Op("b", "backward", time_s=1, reads=("x", "y", "d")),
    )
    return Graph("kept", ops, {"in": 5, "unused": 50}, static_bytes=7)


def test_a_cut_by_hand():
    """At the loss: 7 bytes static, 3 of workspace and 2 of output stay; the cheaper goes first."""
    graph = kept_by_a_loss()
    costs = graph.arrays.op_time_s
    for room, want in ((20, 0.0), (19, 0.1), (10, 1.0), (9, 1.4), (0, 5.0), (-1, math.inf)):
        table = CutTable(graph, 7 + 3 + 2 + room, "fixed")
        cut = table.cut(2)
        assert cut.room_bytes == room
        assert cut_bound(table, cut, costs) == pytest.approx(want)
        if want < math.inf:
            quick = fixed_order_bounds(graph, 7 + 3 + 2 + room, costs)[2]
            assert quick == pytest.approx(want)


def test_in_any_order_only_relatives_have_a_side():
    """f and g have no order between them, so that nothing of g is sure at f."""
    table = CutTable(kept_by_a_loss(), 100, "free")
    cut = table.cut(0)
    assert cut.before.tolist() == [False] * 4
    assert cut.after.tolist() == [False, False, False, True]
    assert CutTable(kept_by_a_loss(), 100, "fixed").cut(1).before.tolist() == [True] + [False] * 3


def test_what_dropping_a_tensor_costs():
    """Outputs share their op's cost by bytes; inputs and outputs of `once` ops cannot go."""
    ops = (
        Op("f", time_s=6, writes={"a": 10, "b": 20, "c": 0}),
        Op("k", time_s=1, writes={"d": 5}, once=True),
    )
    graph = Graph("shares", ops, {"in": 8})
    names = graph.arrays.tensor_names
    costs = dict(zip(names, tensor_costs(graph, graph.arrays.op_time_s).tolist(), strict=True))
    assert costs == {"in": math.inf, "a": 2.0, "b": 4.0, "c": 0.0, "d": math.inf}


def test_prices_span_those_of_the_tensors():
    """Ascending, above zero, the dearest tensor below the last; and one where there is none."""
    cost = np.array([0.0, 2.0, 9.0, np.inf, 1.0])
    size = np.array([4, 4, 3, 7, 0])
    found = prices(cost, size)
    assert np.all(np.diff(found) > 0)
    assert found[0] > 0
    assert {0.5, 3.0} <= set(found.tolist())
    assert found[-1] == 6.0
    assert prices(np.array([np.inf]), np.array([4])).tolist() == [1.0]


@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
@settings(max_examples=examples(30), deadline=None)
def test_first_readers_stand_behind_the_op(seed, num):
    """Whatever reads a tensor earlier."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    op = int(rng.integers(num))
    found = CutTable(graph, 100, "fixed").first_readers(op)
    for tensor, name in enumerate(graph.arrays.tensor_names):
        readers = [i for i, one in enumerate(graph.ops) if name in one.reads and i > op]
        assert found[tensor] == min(readers, default=num)
