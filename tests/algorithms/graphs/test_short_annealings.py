"""Many short annealings, of which the best go on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs import _graph_search
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs._short_annealings import ShortAnnealings
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS, layered


def share_of(graph: Graph, share: float) -> int:
    return int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)


def annealed(graph: Graph, budget: int, num_threads: int, effort: Effort) -> list[GraphWalker]:
    """What short annealings of that effort come to."""
    options = {"seed": 0, "num_threads": num_threads, "gap": 0.0}
    search = GraphSearch(graph, budget, "fixed", effort, **options)
    with Pool[GraphWalker](effort, num_threads, 0.0) as pool:
        return ShortAnnealings(search, pool).run([np.arange(graph.num_ops, dtype=np.int64)])


@pytest.mark.parametrize(("share", "fit"), [(0.6, True), (0.3, False)])
def test_those_that_fit_are_the_same_on_any_threads(share, fit):
    """They take at most half of the work, and each that is kept has another time."""
    graph = layered(100, 0)
    budget = share_of(graph, share)
    found = []
    for num_threads in (1, 2):
        effort = Effort(1.0)
        walkers = annealed(graph, budget, num_threads, effort)
        assert 0.3 < effort.spent < 0.51
        assert all(walker.best_s < math.inf for walker in walkers)
        assert len({walker.best_s for walker in walkers}) == len(walkers)
        found.append([one.best_runs.tolist() for one in walkers])
    assert bool(found[0]) == fit
    assert found[0] == found[1]
    for runs in found[0]:
        schedule = Schedule(graph.op_names, np.array(runs))
        assert simulate(graph, schedule).peak_bytes <= budget


def test_work_that_is_enough_for_few_is_left_to_others():
    graph = layered(100, 0)
    effort = Effort(0.1)
    assert annealed(graph, share_of(graph, 0.6), 1, effort) == []
    assert effort.spent == 0.0


def test_more_work_makes_them_longer_and_not_more(monkeypatch):
    """Thousands would be the same few again and again."""
    graph, amounts = layered(100, 0), []
    walk = Pool.walk

    def noted(self, walkers, segment, share):
        amounts.append(share * self.effort.left)
        walk(self, walkers, segment, 1e-4)
        self.effort.spend(amounts[-1] - 1e-4)

    monkeypatch.setattr(Pool, "walk", noted)
    for work in (1.0, 8.0, 64.0, 512.0):
        amounts.clear()
        annealed(graph, share_of(graph, 0.6), 1, Effort(work))
        assert 0.3 * work < sum(amounts) < 0.51 * work
        assert len(amounts) <= 1 + 32


@pytest.mark.slow
@pytest.mark.parametrize("family", ["nested-skips", "recurrent"])
def test_small_graphs_within_little_memory_have_faster_plans(monkeypatch, family):
    """Not so, they take 50.9 and 64.3 % more than store-all; ten times the work helps as much."""
    graph = SYNTHETIC_GRAPHS[family](120, 0)
    budget = share_of(graph, 0.2)
    overhead = local_search(graph, budget, effort=20.0).overhead
    monkeypatch.setattr(_graph_search, "ShortAnnealings", Left)
    assert overhead < local_search(graph, budget, effort=20.0).overhead - 0.01


class Left(ShortAnnealings):
    """All is left to others."""

    def run(self, lines: object) -> list[GraphWalker]:
        return []
