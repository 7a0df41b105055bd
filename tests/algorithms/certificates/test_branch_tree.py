"""Trees of linear programmes: what their leaves prove, in whole numbers."""

import math

import numpy as np
import pytest
from schedsim.algorithms.certificates.branch_tree import BranchTree, leaf_bound, tree_bound
from schedsim.algorithms.certificates.cut_rows import CutRows, cut_rows
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs._cut_table import CutTable
from training_graphs import random_training_graph

from schedsim import PlannerLimitError, Schedule, simulate
from schedsim.plans.effort import Effort


def knapsack(costs, sizes, most):
    """Drop things of some cost until those kept are within `most`; kept ones are 1."""
    rows = CutRows(cost=[0] * len(sizes) + costs, low=[0] * 2 * len(sizes))
    rows.high = [1] * 2 * len(sizes)
    rows.add({i: -size for i, size in enumerate(sizes)}, -most)
    for i in range(len(sizes)):
        rows.add({i: 1, len(sizes) + i: 1}, 1)
    return rows


def test_branching_finds_the_whole_optimum():
    sizes, costs = [6, 6, 6], [10, 10, 10]
    rows = knapsack(costs, sizes, 11)
    kept = [
        sum(c for i, c in enumerate(costs) if not mask >> i & 1)
        for mask in range(8)
        if sum(s for i, s in enumerate(sizes) if mask >> i & 1) <= 11
    ]
    tree = BranchTree(rows, math.inf, Effort(10.0), 100)
    assert tree.bound == min(kept)
    assert tree.bound == tree_bound(rows, tree.document)
    root_alone = BranchTree(rows, math.inf, Effort(10.0), 1)
    assert root_alone.bound < tree.bound
    assert root_alone.num_leaves == 1 < tree.num_leaves


def test_an_empty_programme_is_proven_to_be():
    rows = knapsack([1, 1], [5, 5], 3)
    rows.low[0] = 1
    tree = BranchTree(rows, 10, Effort(1.0), 5)
    assert tree.bound == math.inf
    assert tree.document["empty"]
    assert leaf_bound(rows, tree.document["y"], rows.low, rows.high, ray=True) > 0


def test_any_multipliers_give_a_bound():
    rows = knapsack([9, 7, 6], [7, 5, 4], 9)
    rng = np.random.default_rng(0)
    for _ in range(50):
        given = [[row, str(rng.integers(0, 9) / 4)] for row in range(len(rows.rows))]
        assert leaf_bound(rows, given, rows.low, rows.high) <= 9


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_bound_is_above_the_optimum(seed):
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, 3)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for share in (0.8,):
        try:
            best = exhaustive(graph, int(share * peak), max_states=5_000)
        except PlannerLimitError:
            continue
        table = CutTable(graph, int(share * peak), "free")
        for place in range(0, graph.num_ops, 3):
            tree = BranchTree(cut_rows(table, [table.cut(place)]), math.inf, Effort(1.0), 8)
            if best.schedule is not None:
                assert tree.bound <= best.makespan_s - graph.store_all_s
