"""Relaxations of more and more cuts."""

from __future__ import annotations

from schedsim.algorithms.graphs._cut_search import CutSearch

from schedsim import Chain, Graph
from schedsim.plans.effort import Effort


def searched(graph: Graph, budget: int, order="fixed", work=5.0) -> CutSearch:
    return CutSearch(graph, budget, order, Effort(work))


def tight_chain(num_stages):
    """Equal stages; each backward takes twice as long as its forward."""
    ones, twos = [1] * num_stages, [2] * num_stages
    return Chain.from_arrays(
        "tight", 1, forward_s=ones, backward_s=twos, output_bytes=ones, saved_bytes=twos
    )


def test_cuts_go_where_memory_has_a_price():
    """On a tight chain the forward's has none; intervals of many lengths prove more there."""
    chain = tight_chain(12)
    search = searched(chain.graph, 8)
    search.knapsacks()
    assert search.places.prices == {}
    assert not search.places.doubling
    search.relaxations()
    assert search.places.doubling
    priced = [op for op, price in search.places.prices.items() if price > 0]
    assert min(priced) > 12
    assert min(search.places.placed(12)) >= min(priced)
    loose = searched(chain.graph, 34)
    loose.knapsacks()
    loose.relaxations()
    assert not loose.places.doubling
