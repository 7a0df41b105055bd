"""Where cuts go, and what relaxations with them take."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs._cut_places import CutPlaces
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._cut_table import CutTable
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op
from schedsim.plans.effort import Effort


def searched(graph: Graph, budget: int, order="fixed", work=5.0) -> CutSearch:
    return CutSearch(graph, budget, order, Effort(work))


def test_only_ops_with_a_sure_place_are_cut_together():
    """In any order, neither of two ops without a path between them is surely first."""
    ops = (
        Op("f", writes={"x": 1}),
        Op("g", writes={"y": 1}),
        Op("h", reads=("x", "y")),
    )
    free, fixed = (searched(Graph("vee", ops), 100, order) for order in ("free", "fixed"))
    assert fixed.places.is_related(0, [1, 2])
    assert not free.places.is_related(0, [1])
    assert free.places.is_related(0, [2])
    chosen = [0]
    free.places.choose(chosen, [1, 2, 2])
    assert chosen == [0, 2]


def test_cuts_are_spread_over_the_step_worst_first():
    """One of each stretch where something must go."""
    graph = unit_training_chain(30)
    search = searched(graph, 12)
    search.knapsacks()
    found = search.places.spread(4)
    assert 2 <= len(found) <= 4
    worth = search.places.promise[found].tolist()
    assert worth == sorted(worth, reverse=True)
    some = np.flatnonzero(search.places.promise > 0.15 * search.places.promise.max())
    edges = np.linspace(some[0], some[-1] + 1, 5).astype(int)
    stretches = [int(np.searchsorted(edges, op, side="right")) for op in found]
    assert len(set(stretches)) == len(found)
    assert int(np.argmax(search.places.promise)) == found[0]
    nothing = searched(graph, 10**6)
    nothing.knapsacks()
    assert nothing.places.spread(4) == []


def test_what_a_relaxation_takes_grows_with_its_cuts():
    """More cuts, and intervals of many lengths, have more non-zeros; little work affords few."""
    graph = random_training_graph(np.random.default_rng(5), 60)
    places = CutPlaces(graph, CutTable(graph, 10**6, "fixed"))
    few, many = list(range(10, 40, 10)), list(range(10, 40, 2))
    assert places.likely_nonzeros(few) < places.likely_nonzeros(many)
    known = places.likely_nonzeros(many)
    places.doubling = True
    assert places.likely_nonzeros(many) > known
    assert places.affords(few, 100.0)
    assert not places.affords(many, 1e-6)
    assert places.cut(20) is places.cut(20)
