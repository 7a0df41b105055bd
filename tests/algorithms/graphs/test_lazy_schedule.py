"""Schedules that do what cuts ask for."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.graphs._lazy_schedule import crowded_at, lazy_runs
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op, Schedule, simulate


def wide() -> Graph:
    return random_training_graph(np.random.default_rng(5), 20)


@given(seed=st.integers(0, 10**9), num=st.integers(1, 9))
@settings(max_examples=examples(80), deadline=None)
def test_what_a_cut_evicts_is_recomputed_behind_it(seed, num):
    """Legal, first runs in order, and nobody reads across a cut what the cut does not keep."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    table = CutTable(graph, 10**6, "fixed")
    cuts = [table.cut(op) for op in range(num) if rng.random() < 0.4]
    names = graph.arrays.tensor_names
    alive = [rng.random(len(names)) < 0.5 for _ in cuts]
    runs = lazy_runs(graph, cuts, alive)
    if runs is None:
        assert any(op.once for op in graph.ops)
        return
    simulate(graph, Schedule(graph.op_names, runs))  # raises where it is illegal
    assert list(dict.fromkeys(runs)) == list(range(num))
    producer = {tensor: op for op in graph.ops for tensor in op.writes}
    for cut, kept in zip(cuts, alive, strict=True):
        at = runs.index(cut.op)
        made_since: set[str] = set()
        for run in runs[at + 1 :]:
            for tensor in graph.ops[run].reads:
                maker = producer.get(tensor)
                across = tensor not in made_since
                if across and maker is not None and not maker.once:
                    index = names.index(tensor)
                    assert kept[index] or cut.given[index], (tensor, cut.op)
            made_since |= set(graph.ops[run].writes)


def test_keeping_everything_repeats_nothing():
    """And so does a step without cuts."""
    graph = wide()
    table = CutTable(graph, 10**6, "fixed")
    cuts = [table.cut(op) for op in (5, 12)]
    everything = np.ones(graph.arrays.tensor_bytes.size, dtype=bool)
    assert lazy_runs(graph, cuts, [everything] * 2) == list(range(graph.num_ops))
    assert lazy_runs(graph, [], []) == list(range(graph.num_ops))


def test_what_a_once_op_needs_back_is_no_schedule():
    """f reads what k, which runs once, wrote; k cannot run again, but its output is never given up.

    A graph where the evicted tensor's own op runs once keeps that tensor.
    """
    ops = (
        Op("k", writes={"x": 1}, once=True),
        Op("f", reads=("x",), writes={"y": 1}),
        Op("l", "loss"),
        Op("b", "backward", reads=("y",)),
    )
    graph = Graph("once", ops)
    cut = CutTable(graph, 10, "fixed").cut(2)
    assert lazy_runs(graph, [cut], [np.zeros(2, dtype=bool)]) == [0, 1, 2, 1, 3]


def test_where_a_schedule_is_most_over_budget():
    """At its peak, and beside the repeats that lie between the first runs around it."""
    graph = unit_training_chain(6)
    runs = list(range(graph.num_ops))
    simulation = simulate(graph, Schedule.store_all(graph))
    assert crowded_at(runs, simulation, simulation.peak_bytes - 1) == (simulation.peak_run, ())
    again = [*runs[: simulation.peak_run], 0, *runs[simulation.peak_run :]]
    simulation = simulate(graph, Schedule(graph.op_names, again))
    op, repeats = crowded_at(again, simulation, simulation.peak_bytes - 1)
    assert op == again[simulation.peak_run]
    assert repeats in ((), (0,))
