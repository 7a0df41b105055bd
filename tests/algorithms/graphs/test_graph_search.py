"""The search behind `local_search`: walkers, and the bound beside them."""

from __future__ import annotations

from schedsim.algorithms.graphs._graph_search import GraphSearch
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Graph, Op


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
