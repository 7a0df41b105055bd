"""The rounds of walkers: who goes on, and from where."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs import _walker_rounds as module
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads._synthetic_network import SyntheticNetwork
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS, layered


def nested(size: int, seed: int) -> Graph:
    """A training step of branches in branches, of two to four each, with lopsided tensors."""
    rng = np.random.default_rng(seed)
    net = SyntheticNetwork(rng)

    def grown(at: int, left: int) -> int:
        if left <= 1:
            return net.op(at, size=rng.lognormal(), time=rng.gamma(2.0))
        if rng.random() < 0.5:
            first = int(rng.integers(1, left))
            return grown(grown(at, first), left - first)
        shares = rng.multinomial(left - 1, rng.dirichlet(np.ones(int(rng.integers(2, 5)))))
        ends = [grown(at, int(share)) for share in shares]
        return net.op(*ends, size=rng.lognormal(), time=0.1)

    grown(net.op(), size)
    return net.training("nested")


def test_hundreds_of_ops_with_one_start_end_with_one_walker(monkeypatch):
    """The best of the first round has the work of later ones."""
    counts, walk = [], Pool.walk

    def counted(self, walkers, segment, share):
        counts.append((segment.number, len(walkers)))
        walk(self, walkers, segment, share)

    monkeypatch.setattr(Pool, "walk", counted)
    graph = layered(600, 0)
    budget = int(0.8 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    search = GraphSearch(graph, budget, "fixed", Effort(0.2), seed=0, num_threads=2, gap=0.0)
    search.run(())
    assert counts == [(0, 4), (0, 4), (0, 4), (1, 1)]


@pytest.mark.slow
def test_where_nothing_fits_walkers_start_from_schedules_of_the_bound():
    """From the graph's own order none comes within this budget with several times the work."""
    graph = nested(90, 5)
    budget = int(1.1 * least_memory_bytes(graph)[0])
    plan = local_search(graph, budget, effort=0.5)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= budget
    assert local_search(graph, budget, effort=0.5, num_threads=1).schedule == plan.schedule


@pytest.mark.slow
def test_where_many_ops_are_hard_to_fit_walkers_start_from_the_bound_too():
    """All of the work is spent; it is the same on one thread."""
    graph = layered(500, 1)
    budget = int(0.4 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    found = []
    for num_threads in (1, 2):
        effort = Effort(1.0)
        options = {"seed": 0, "num_threads": num_threads, "gap": 0.0}
        search = GraphSearch(graph, budget, "fixed", effort, **options)
        search.run(())
        assert effort.left == pytest.approx(0.0, abs=0.1)
        assert all(walker.rules.lasting for walker in search.walkers[-2:])
        found.append(search.best())
    assert found[0] is not None
    assert simulate(graph, found[0]).peak_bytes <= budget
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["recurrent", "nested-skips", "branches"])
def test_where_most_walkers_fit_soon_they_move_as_usual(family):
    """Not so, plans of 1,000 ops at 40 % were up to 0.6 % of the step slower."""
    graph = SYNTHETIC_GRAPHS[family](500, 0)
    budget = int(0.4 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    search = GraphSearch(graph, budget, "fixed", Effort(0.3), seed=0, num_threads=2, gap=0.0)
    search.run(())
    assert search.best() is not None
    assert all(walker.rules.summed for walker in search.walkers)
    assert not any(walker.rules.lasting for walker in search.walkers)


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 2])
def test_programs_end_the_search_and_are_the_same_on_any_threads(num_threads):
    """What they come to is the plan, and they take all of the work that is left."""
    graph = SYNTHETIC_GRAPHS["message-passing"](300, 1)
    budget = int(0.35 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    options = {"seed": 0, "num_threads": num_threads, "gap": 0.0}
    search = GraphSearch(graph, budget, "fixed", effort := Effort(2.0), **options)
    search.run(())
    assert len(search.programs) == 1 + module._REPLANS
    best = min(search.programs, key=lambda one: one.rank)
    assert search.best() == Schedule(graph.op_names, best.best_runs)
    assert best.best_s <= min(walker.best_s for walker in search.walkers)
    assert simulate(graph, search.best()).peak_bytes <= budget
    assert effort.left == pytest.approx(0.0, abs=0.1)
    other = local_search(graph, budget, effort=2.0, num_threads=3 - num_threads)
    assert other.schedule == search.best()
