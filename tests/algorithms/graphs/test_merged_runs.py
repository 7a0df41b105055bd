"""Several schedules in one sequence of runs."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs import _merged_runs as module
from schedsim.algorithms.graphs._merged_runs import merged_runs, runs_of

from tests.helpers.chains import random_graph, random_schedule


def lines_of(rng, graph, count):
    return [random_schedule(rng, graph).bind(graph).astype(np.int64) for _ in range(count)]


def test_every_schedule_is_contained():
    rng = np.random.default_rng(0)
    for _ in range(60):
        graph = random_graph(rng, int(rng.integers(1, 12)))
        lines = lines_of(rng, graph, 3)
        merged = merged_runs(lines, graph.num_ops)
        assert merged.size <= sum(line.size for line in lines) - 2 * graph.num_ops
        for line in lines:
            used = runs_of(merged, line, graph.num_ops)
            assert merged[used].tolist() == line.tolist()


def test_what_is_common_is_there_once():
    line = np.array([0, 1, 0, 1, 2, 0, 3])
    assert merged_runs([line, line], 4).tolist() == line.tolist()
    other = np.array([0, 1, 1, 0, 2, 1, 3])
    assert merged_runs([line, other], 4).tolist() == [0, 1, 0, 1, 0, 2, 0, 1, 3]


def test_long_lists_follow_each_other(monkeypatch):
    monkeypatch.setattr(module, "_MOST_PAIRS", 3)
    supersequence = module._supersequence.py_func
    found = np.empty(4, np.int64)
    count = supersequence(np.array([1, 2]), np.array([2, 1]), found, 0)
    assert found[:count].tolist() == [1, 2, 2, 1]
