"""Where a relaxed point has no room, and between which cuts it does too little."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._cut_model import cut_milp
from schedsim.algorithms.graphs._cut_separation import (
    RelaxedPoint,
    excess_bytes,
    missing_intervals,
)
from schedsim.algorithms.graphs._cut_table import CutTable
from tiers import examples
from training_graphs import unit_training_chain

from schedsim import Chain, Graph, Schedule, simulate
from schedsim.plans.effort import Effort


def kept_all(graph: Graph, ops: list[int]) -> tuple[CutTable, RelaxedPoint]:
    """Cuts at `ops`, at which all that is read later is alive; nothing runs again."""
    table = CutTable(graph, 100, "fixed")
    arrays = graph.arrays
    cuts = [table.cut(op) for op in ops]
    alive = [table.needed(cut.after) & (arrays.tensor_producer <= cut.op) for cut in cuts]
    shape = len(ops), graph.num_ops
    return table, RelaxedPoint(cuts, np.array(alive, dtype=np.float64), np.zeros(shape))


@pytest.mark.parametrize("ops", [[3], [2, 7], [0, 5, 6, 11]])
def test_where_nothing_runs_again_it_is_the_memory_of_store_all(ops):
    """At all first runs but those at the cuts."""
    graph = unit_training_chain(6)
    table, point = kept_all(graph, ops)
    excess = excess_bytes(table, point)
    used = simulate(graph, Schedule.store_all(graph)).memory_bytes
    others = np.setdiff1d(np.arange(graph.num_ops), ops)
    assert excess[others].tolist() == (used[others] - 100).tolist()
    assert np.isneginf(excess[ops]).all()


def test_a_repeated_run_stands_before_what_needs_it():
    """For the backward that reads what was evicted at the loss; it counts from there on."""
    graph = unit_training_chain(4)
    loss = 4
    table, point = kept_all(graph, [loss])
    tensor = int(graph.arrays.write_tensor[1])
    op = int(graph.arrays.tensor_producer[tensor])
    readers = table.readers[graph.arrays.read_tensor == tensor]
    reader = int(readers[readers > loss].min())
    before = excess_bytes(table, point)
    point.alive[0, tensor], point.again[0, op] = 0.0, 1.0
    before[loss] = 0.0
    change = before - np.maximum(excess_bytes(table, point), -1e9)
    size = graph.arrays.tensor_bytes[tensor]
    assert change[loss + 1 : reader].tolist() == [size] * (reader - loss - 1)
    assert not change[reader:].any()


def relaxed(graph: Graph, budget: int, ops: list[int], longer: list[tuple[int, int]]):
    """The bound and the point of exact relaxations; ``None`` where nothing fits."""
    table = CutTable(graph, budget, "fixed")
    cuts = [table.cut(op) for op in ops]
    milp, _ = cut_milp(table, cuts, graph.arrays.op_time_s, longer=longer)
    answer = milp.solve(Effort(20.0), integral=False)
    if answer.x is None:
        return None
    size = len(ops) * table.num_tensors
    alive = answer.x[:size].reshape(len(ops), table.num_tensors)
    again = answer.x[size : size + len(ops) * table.num_ops].reshape(len(ops), table.num_ops)
    return table, answer.bound, RelaxedPoint(cuts, alive, again)


def all_pairs(num_cuts: int) -> list[tuple[int, int]]:
    return [(k, k + far) for far in range(2, num_cuts + 1) for k in range(num_cuts + 1 - far)]


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(40), deadline=None)
def test_intervals_that_prove_more_are_missing(seed):
    """If no interval is missing at a point, the point is the optimum with all of them, too."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(4, 9)))
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = int(rng.integers(peak // 2, peak + 1))
    ops = sorted(rng.choice(graph.num_ops, 4, replace=False).tolist())
    plain, whole = (relaxed(graph, budget, ops, pairs) for pairs in ([], all_pairs(4)))
    if plain is None or whole is None:
        return
    table, bound, point = plain
    costs = graph.arrays.op_time_s
    if whole[1] > bound + 0.05 * graph.store_all_s:
        assert missing_intervals(table, point, costs, set())
    assert missing_intervals(whole[0], whole[2], costs, set()) == []


def test_intervals_that_are_known_are_not_named():
    """A tight chain; the worst interval comes first."""
    ones, twos = [1] * 8, [2] * 8
    graph = Chain.from_arrays(
        "tight", 1, forward_s=ones, backward_s=twos, output_bytes=ones, saved_bytes=twos
    ).graph
    found = relaxed(graph, 8, [7, 9, 11, 13], [])
    assert found is not None
    table, _, point = found
    missing = missing_intervals(table, point, graph.arrays.op_time_s, set())
    assert [one[0] for one in missing] == sorted((one[0] for one in missing), reverse=True)
    assert len(missing) > 1
    worst = missing[0][1:]
    rest = missing_intervals(table, point, graph.arrays.op_time_s, {worst})
    assert rest == missing[1:]
