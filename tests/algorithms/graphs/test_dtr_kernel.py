"""The eviction loop of DTR: against a slow replay from its definition, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from schedsim.algorithms.graphs import dtr as dtr_module
from schedsim.algorithms.graphs.dtr import HEURISTICS, MAX_RUNS_PER_OP, dtr_runs
from slow_dtr import NoRoom, SlowDtr
from training_graphs import random_training_graph

from schedsim import Graph, Op, Schedule, simulate

each_heuristic = pytest.mark.parametrize("heuristic", HEURISTICS)


def plain(rng: np.random.Generator, graph: Graph) -> Graph:
    """The graph without inputs and special ops; sizes and times drawn so that no two h tie."""
    ops = []
    for op in graph.ops:
        reads = tuple(t for t in op.reads if t not in graph.inputs)
        writes = {t: int(rng.integers(1, 10**6)) for t in op.writes}
        ops.append(Op(op.name, op.phase, float(rng.random()) + 0.01, 0, reads, writes))
    return replace(graph, ops=tuple(ops), inputs={}, static_bytes=0)


@each_heuristic
def test_equals_the_slow_replay(heuristic):
    """The same runs, and failure at the same budgets, on graphs of 6 to 50 ops."""
    num_recomputed = num_failed = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        graph = plain(rng, random_training_graph(rng, int(rng.integers(3, 25))))
        peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
        for percent in (95, 80, 65):
            budget = peak * percent // 100
            try:
                expected = SlowDtr(graph, budget, heuristic).replay()
            except NoRoom:
                expected = None
            if expected and len(expected) > MAX_RUNS_PER_OP * graph.num_ops:
                expected = None
            runs = dtr_runs(graph.arrays, budget, heuristic)
            assert (None if runs is None else runs.tolist()) == expected
            num_failed += expected is None
            num_recomputed += 0 if expected is None else len(expected) - graph.num_ops
    assert num_failed < 60
    assert num_recomputed > 80


def test_an_input_is_given_up_where_nothing_needs_it():
    """The input is 4 bytes and only f reads it: g fits in 8 as f can no longer run again."""
    ops = (
        Op("f", time_s=1, reads=("x",), writes={"y": 3}),
        Op("g", time_s=1, reads=("y",), writes={"z": 5}),
        Op("h", time_s=1, reads=("y", "z")),
    )
    graph = Graph("banish", ops, {"x": 4})
    assert dtr_runs(graph.arrays, 8, "dtr").tolist() == [0, 1, 2]
    flow = dtr_module.dataflow(graph.arrays)
    assert dtr_module._replayed(flow, 8, "dtr", eager=False)[0] is None


def test_what_must_run_once_is_not_evicted():
    """y cannot be made again; so z, dearer to lose, is."""
    ops = (
        Op("f", time_s=1, writes={"y": 4}, once=True),
        Op("g", time_s=50, reads=("y",), writes={"z": 4}),
        Op("w", time_s=1, workspace_bytes=6),
        Op("h", time_s=1, reads=("y", "z")),
    )
    assert dtr_runs(Graph("once", ops).arrays, 10, "local").tolist() == [0, 1, 2, 1, 3]
    again = (replace(ops[0], once=False), *ops[1:])
    assert dtr_runs(Graph("twice", again).arrays, 10, "local").tolist() == [0, 1, 2, 0, 3]


def test_a_lost_result_is_made_again_at_the_end():
    """r makes room for the workspace of w, and must be there when the step ends."""
    ops = (Op("f", time_s=1, writes={"r": 4}), Op("w", time_s=1, workspace_bytes=6))
    graph = Graph("result", ops, results=("r",))
    assert dtr_runs(graph.arrays, 10, "dtr").tolist() == [0, 1]
    assert dtr_runs(graph.arrays, 6, "dtr").tolist() == [0, 1, 0]


def test_storage_taken_over_counts_once():
    """y takes over x, so that 8 bytes hold both; a later reader of x has it made again."""
    ops = (
        Op("f", time_s=1, writes={"x": 8}),
        Op("g", time_s=1, reads=("x",), writes={"y": 8}, in_place={"y": "x"}),
        Op("h", time_s=1, reads=("y",)),
        Op("k", time_s=1, reads=("x",)),
    )
    assert dtr_runs(Graph("in place", ops).arrays, 8, "dtr").tolist() == [0, 1, 2, 0, 3]
    assert dtr_runs(Graph("in place", ops).arrays, 16, "dtr").tolist() == [0, 1, 2, 3]
