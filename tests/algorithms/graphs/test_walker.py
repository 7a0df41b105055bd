"""One annealing of the schedule of a graph, with the best it has seen."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.local_search import local_search
from training_graphs import random_training_graph

from schedsim import Graph, Schedule, simulate


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def wide_graph(num: int = 40) -> Graph:
    """A training graph whose bound is not met, so that the search goes on to its end."""
    return random_training_graph(np.random.default_rng(5), num)


def test_a_failure_in_a_thread_is_not_lost(monkeypatch):
    """Neither that of the bound nor that of a walker; and nobody searches on for an hour."""

    def failing(*args):
        raise ZeroDivisionError("on purpose")

    graph = wide_graph()
    budget = (peak_of(graph) + 3 * least_memory_bytes(graph)[0]) // 4
    for owner, name in ((CutSearch, "solve_milps"), (GraphWalker, "anneal")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            with pytest.raises(ZeroDivisionError, match="on purpose"):
                local_search(graph, budget, effort=1e9, time_limit_s=3000)
