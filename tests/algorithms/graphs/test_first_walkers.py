"""What the walkers of a search begin with."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._first_walkers import first_walkers, line_to_save
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS, layered


def test_thousands_of_ops_start_from_what_is_best_to_save():
    """In an instant of work, walkers from the usual order come down to twelve percent."""
    graph = SYNTHETIC_GRAPHS["dense"](3000, 0)
    budget = int(0.35 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = local_search(graph, budget, effort=0.3)
    assert plan.overhead < 0.02
    assert plan.lower_bound_s <= plan.makespan_s


@pytest.mark.parametrize(
    ("num_ops", "effort", "order", "count"),
    [
        (3000, Effort(1.0), "fixed", 1),
        (3000, Effort(1.0), "free", 2),
        (3000, Effort(time_limit_s=1.0), "fixed", 2),
        (2000, Effort(1.0), "fixed", 4),
    ],
)
def test_thousands_of_ops_with_one_start_have_one_walker(num_ops, effort, order, count):
    """Where work is counted. Two would each end half as deep as one that has all of the work."""
    graph = layered(num_ops, 0)
    budget = int(0.6 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    search = GraphSearch(graph, budget, order, effort, seed=0, num_threads=2, gap=0.0)
    line = np.arange(graph.num_ops, dtype=np.int64)
    search.bound.exclude()  # no start from what is best to save
    assert len(first_walkers(search, [], [line], ())) == count
    assert len(first_walkers(search, [line], [line], ())) == max(2, count)


def test_a_start_that_is_faster_needs_no_other():
    """What is best to save is a start only where it beats the starts that were given."""
    graph = SYNTHETIC_GRAPHS["dense"](300, 0)
    budget = int(0.4 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    known = local_search(graph, budget, effort=0.5).schedule
    search = GraphSearch(graph, budget, "fixed", Effort(1.0), seed=0, num_threads=1, gap=0.0)
    assert line_to_save(search, []) is not None
    assert line_to_save(search, [known]) is None
    assert line_to_save(search, [Schedule.store_all(graph)]) is not None  # faster, but does not fit
