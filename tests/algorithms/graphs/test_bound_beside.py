"""The bound beside the walkers: its share, its end, and what it hands on."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs._bound_beside import BoundBeside
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs._walker import GraphWalker

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered


def share_of(graph: Graph, share: float) -> int:
    return int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)


@pytest.mark.parametrize(
    ("moves", "work"), [(0, 0.2), (1700, 0.7), (20_000, 6.0), (None, 6.0)], ids=str
)
def test_few_moves_ask_for_little_of_the_bound(moves, work):
    """2,000 moves take a tenth of a second; their bound took ten seconds of the solver."""
    graph = layered(40, seed=1)
    budget = share_of(graph, 0.6)
    effort = Effort.of(20.0, moves=moves)
    effort.cancel()  # the shares are dealt out all the same
    search = GraphSearch(graph, budget, "fixed", effort, seed=0, num_threads=1, gap=0.0)
    search.run(())
    assert search.bound.cuts.effort.work == pytest.approx(work)


@pytest.mark.slow
def test_what_is_proven_is_known_when_the_bound_is_joined():
    """Not before: how early the bound ends is chance."""
    graph = layered(40, seed=1)
    effort = Effort(2.0)
    bound = BoundBeside(graph, share_of(graph, 0.6), "fixed", effort, 0.0)
    with Pool[GraphWalker](effort, 1, bound.enough_s) as pool:
        bound.prepare(pool)
        bound.begin(pool)
        bound.wait()
        assert bound.best_s == np.inf
        spent = effort.spent
        bound.join(pool)
        assert bound.best_s == bound.cuts.best_s
        assert effort.spent > spent
        assert pool.enough_s == bound.enough_s >= bound.cuts.bound_s > graph.store_all_s
    bound.check()


def test_what_the_solver_raises_is_raised_by_who_waits(monkeypatch):
    def broken(self):
        raise ArithmeticError("broken")

    graph = layered(40, seed=1)
    effort = Effort(1.0)
    bound = BoundBeside(graph, share_of(graph, 0.6), "fixed", effort, 0.0)
    monkeypatch.setattr(CutSearch, "solve_milps", broken)
    with Pool[GraphWalker](effort, 1, bound.enough_s) as pool:
        bound.prepare(pool)
        bound.begin(pool)
        bound.wait()
        assert pool.halted.is_set()
    with pytest.raises(ArithmeticError, match="broken"):
        bound.check()


def test_where_one_op_alone_needs_more_nothing_fits():
    graph = layered(40, seed=1)
    bound = BoundBeside(graph, 1, "fixed", Effort(1.0), 0.0)
    bound.exclude()
    assert (bound.bound_s, bound.best_s, bound.near()) == (np.inf, np.inf, [])
