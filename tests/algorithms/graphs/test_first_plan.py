"""A first plan, soon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs._first_plan import walk_to_first_plan
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered, wide


def budget_of(graph: Graph, share: float) -> int:
    return int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "share", "most"), [(wide(400, 0), 0.6, 0.5), (layered(1000, 3), 0.4, 1.2)]
)
def test_a_search_has_a_plan_after_little_work(graph, share, most):
    """Walkers that begin warm come within these budgets after some units of work."""
    effort = Effort(20.0, stop=lambda best_s: best_s < math.inf)
    plan = local_search(graph, budget_of(graph, share), effort=effort)
    assert plan.schedule is not None
    assert simulate(graph, plan.schedule).peak_bytes <= plan.budget_bytes
    assert effort.spent < most


@pytest.mark.parametrize(
    ("graph", "effort"),
    [
        (layered(3000), Effort(20.0)),
        (layered(100), Effort(20.0, moves=100)),
        (layered(600), Effort(5.0)),
    ],
)
def test_where_none_is_looked_for(graph, effort):
    """Not on the largest graphs, with scouts of their own; for counted moves; for little effort."""
    budget_bytes = budget_of(graph, 0.4)
    search = GraphSearch(graph, budget_bytes, "fixed", effort, seed=0, num_threads=1, gap=0.0)
    with Pool[GraphWalker](effort, 1, 0.0) as pool:
        assert walk_to_first_plan(search, pool, np.arange(graph.num_ops)) is None
    assert effort.spent == 0.0
    assert search.ahead == []


def test_a_plan_that_no_other_walker_has_is_the_answer():
    """As after an interrupt; on few ops the others have all of the work after it."""
    graph, effort = layered(100), Effort(20.0)
    search = GraphSearch(
        graph, budget_of(graph, 0.6), "fixed", effort, seed=0, num_threads=1, gap=0
    )
    with Pool[GraphWalker](effort, 1, 0.0) as pool:
        walker = walk_to_first_plan(search, pool, np.arange(graph.num_ops))
    assert walker is not None
    assert walker.best_s < math.inf
    assert search.none_fits()  # no other goes on from it
    best = search.best()
    assert best is not None
    assert simulate(graph, best).makespan_s == pytest.approx(walker.best_s)
    assert search.ahead_spent == effort.spent == 0.0
