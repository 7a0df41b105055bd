"""The MILP of several cuts: below every schedule, and above what single cuts can say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from chains import random_graph
from fixed_order import fixed_order_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._cut_model import cut_milp, longer_intervals, parts_of
from schedsim.algorithms.graphs._cut_table import CutTable, cut_bound
from tiers import examples

from schedsim import Chain, Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort


def solved(graph, budget, ops, *, integral=True, **rules):
    """The answer for the cuts at `ops`, in the graph's order, and what each keeps alive."""
    table = CutTable(graph, budget, "fixed")
    milp, alive = cut_milp(table, [table.cut(op) for op in ops], graph.arrays.op_time_s, **rules)
    return milp.solve(Effort(20.0), integral=integral), alive


@given(seed=st.integers(0, 10**9), num=st.integers(2, 6))
@settings(max_examples=examples(15), deadline=None)
def test_no_schedule_in_order_repeats_less(seed, num):
    """Random cuts, with and without a look beside repeated runs; relaxed or in whole numbers."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in rng.integers(peak // 2, peak + 1, 3).tolist():
        most = (fixed_order_optimum(graph, budget) - graph.store_all_s) * (1 + 1e-6) + 1e-6
        ops = sorted(rng.choice(num, int(rng.integers(1, num + 1)), replace=False).tolist())
        beside = [
            (k, op)
            for k, (left, right) in enumerate(itertools.pairwise(ops))
            for op in range(left + 1)
            if right == left + 1 and not graph.ops[op].once
        ]
        plain, _ = solved(graph, budget, ops)
        more, _ = solved(graph, budget, ops, beside=beside, doubling=True)
        relaxed, _ = solved(graph, budget, ops, integral=False)
        closer, _ = solved(graph, budget, ops, beside=beside, doubling=True, integral=False)
        longer, _ = solved(graph, budget, ops, doubling=True, integral=False)
        pairs = [(k, end) for end in range(2, len(ops) + 1) for k in range(end - 1)]
        some = [pair for pair in pairs if rng.random() < 0.5]
        chosen, _ = solved(graph, budget, ops, longer=some, integral=False)
        answers = (relaxed, longer, plain, more, closer, chosen)
        bounds = [math.inf if it.infeasible else it.bound for it in answers]
        assert bounds[0] <= bounds[1] + 1e-6  # a further rule never lowers the bound
        assert bounds[1] <= bounds[2] + 1e-6  # whole numbers imply the longer intervals
        assert bounds[2] <= bounds[3] + 1e-6
        assert bounds[1] <= bounds[4] + 1e-6
        assert bounds[4] <= bounds[3] + 1e-6
        assert bounds[3] <= most
        assert bounds[5] <= bounds[2] + 1e-6  # so do any others


def test_an_interval_is_put_together_from_few():
    """From two where they meet, the more even the better; else from the longest there are."""
    known = {(k, k + 1) for k in range(6)} | {(0, 2), (2, 6), (0, 4), (4, 6), (1, 4)}
    assert parts_of(0, 6, known) == [(0, 2), (2, 6)]
    assert parts_of(1, 5, known) == [(1, 4), (4, 5)]
    assert parts_of(0, 3, known) == [(0, 2), (2, 3)]
    assert parts_of(2, 5, known - {(2, 6)}) == [(2, 3), (3, 4), (4, 5)]


def deep() -> Graph:
    """To make y (1 s) again takes x (10 s), which is as large; both are read after the loss."""
    ops = (
        Op("f", time_s=10, writes={"x": 10}),
        Op("g", time_s=1, reads=("x",), writes={"y": 10}),
        Op("loss", "loss", time_s=0, workspace_bytes=10),
        Op("b", "backward", time_s=1, reads=("y",)),
        Op("c", "backward", time_s=1, reads=("x",)),
    )
    return Graph("deep", ops)


def test_what_a_repeated_run_reads_counts():
    """The knapsack drops y for a second; the MILP knows that x must be there for it."""
    graph = deep()
    table = CutTable(graph, 20, "fixed")
    assert cut_bound(table, table.cut(2), graph.arrays.op_time_s) == 1
    answer, alive = solved(graph, 20, [2])
    assert answer.bound == pytest.approx(1)
    kept = answer.x[alive[0]] > 0.5
    assert kept.tolist() == [True, False]  # x stays, y is made again from it
    # Nothing fits beside the workspace: both run again, though c alone would need but x.
    answer, _ = solved(graph, 10, [2])
    assert answer.bound == pytest.approx(11)


def test_a_run_between_two_cuts_serves_what_is_read_there():
    """x is evicted at both losses: read between them and behind them, f runs twice again."""
    ops = (
        Op("f", time_s=3, writes={"x": 10}),
        Op("l1", "loss", workspace_bytes=10),
        Op("r", time_s=1, reads=("x",)),
        Op("l2", "loss", workspace_bytes=10),
        Op("s", time_s=1, reads=("x",)),
    )
    graph = Graph("twice", ops)
    assert solved(graph, 10, [1])[0].bound == pytest.approx(3)
    assert solved(graph, 10, [3])[0].bound == pytest.approx(3)
    assert solved(graph, 10, [1, 3])[0].bound == pytest.approx(6)
    assert fixed_order_optimum(graph, 10) == graph.store_all_s + 6


def test_what_is_known_is_paid_besides():
    """The answer costs at least that much, and no more than the runs cost where these cost more."""
    graph = deep()
    assert solved(graph, 20, [2], at_least=5.0)[0].bound == pytest.approx(5)
    assert solved(graph, 20, [2], at_least=12.0)[0].bound == pytest.approx(12)
    assert solved(graph, 10, [2], at_least=5.0)[0].bound == pytest.approx(11)


def test_nothing_fits_is_infeasible():
    """The loss's workspace alone is above the budget."""
    assert solved(deep(), 9, [2])[0].infeasible


def test_intervals_of_many_lengths_keep_halves_apart():
    """A tight chain: a cut at each op, relaxed, 47 %; with longer intervals 57.5 %; optimum 63.3 %.

    Proven by the exact search over any schedule; in whole numbers the cuts prove it, too.
    """
    ones, twos = [1] * 10, [2] * 10
    chain = Chain.from_arrays(
        "ten", 1, forward_s=ones, backward_s=twos, output_bytes=ones, saved_bytes=twos
    )
    graph, ops = chain.graph, range(21)
    assert solved(graph, 7, ops, integral=False)[0].bound == pytest.approx(14.2, abs=0.1)
    assert solved(graph, 7, ops, doubling=True, integral=False)[0].bound == pytest.approx(17.25)


def test_intervals_by_length():
    """To the end from every cut but the last; others of two, four, ... cuts where asked for."""
    assert longer_intervals(1, doubling=True) == []
    assert longer_intervals(3, doubling=False) == [(0, 3), (1, 3)]
    found = longer_intervals(6, doubling=True)
    assert found[:5] == [(k, 6) for k in range(5)]
    assert found[5:] == [(0, 2), (1, 3), (2, 4), (3, 5), (0, 4), (1, 5)]


def test_what_no_later_op_needs_is_left_out():
    """s is read by g alone, and what g writes, by nothing behind the loss; x makes y again."""
    ops = (
        Op("f", writes={"x": 1}),
        Op("e", writes={"s": 1}),
        Op("g", reads=("s",), writes={"z": 1}),
        Op("h", reads=("x",), writes={"y": 1}),
        Op("loss", "loss", reads=("z",)),
        Op("b", "backward", reads=("y",)),
    )
    graph = Graph("dead", ops)
    table = CutTable(graph, 10, "fixed")
    useful, makers = table.useful(np.arange(6) <= 4)
    names = graph.arrays.tensor_names
    assert [names[t] for t in np.flatnonzero(useful)] == ["x", "y"]
    assert np.flatnonzero(makers).tolist() == [0, 3]
