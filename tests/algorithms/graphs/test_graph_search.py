"""The search behind `local_search`: an interrupt, and what goes first."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs import _graph_search as module
from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Op, Schedule, simulate
from schedsim.workloads.synthetic_graphs import branches


def four() -> Graph:
    return Graph(
        "four",
        (
            Op("a", time_s=1, writes={"x": 2}),
            Op("b", time_s=1, reads=("x",), writes={"y": 2}),
            Op("c", time_s=1, reads=("y",), writes={"z": 2}),
            Op("d", "backward", time_s=1, reads=("x", "z")),
        ),
    )


def test_an_interrupt_before_the_bound_begins(monkeypatch):
    """Where the threads have not begun, there is nothing to wait for."""

    def interrupted(self, starts):
        raise KeyboardInterrupt

    monkeypatch.setattr(GraphSearch, "_starts", interrupted)
    plan = local_search(four(), 4)
    assert plan.status == "infeasible"
    assert plan.search.interrupted


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("share", [0.45, 0.6, 0.9])
def test_kernels_that_are_not_compiled_yet_change_nothing(monkeypatch, seed, share):
    """The bound goes first then; what it solves needs no walker."""
    graph = branches(40, seed)
    budget = int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    warm = local_search(graph, budget, effort=0.3, max_moves=3000)
    makes = []
    make = GraphSearch.make
    monkeypatch.setattr(GraphSearch, "make", lambda *a, **k: makes.append(a) or make(*a, **k))
    monkeypatch.setattr(module, "at_hand", lambda kernel: False)
    cold = local_search(graph, budget, effort=0.3, max_moves=3000)
    assert (cold.schedule, cold.search, cold.lower_bound_s, cold.least) == (
        warm.schedule,
        warm.search,
        warm.lower_bound_s,
        warm.least,
    )
    assert bool(makes) == bool(cold.search.num_moves or not cold.feasible)
