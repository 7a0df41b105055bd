"""Greedy orders and the leanest schedule of a free order: legal, sorted, and met by a search."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.free_order import greedy_orders, leanest_in_free_order
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Schedule, simulate
from schedsim.workloads.synthetic_graphs import layered, wide


@pytest.mark.parametrize("seed", range(3))
def test_greedy_orders_run_every_op_once(seed):
    """The one of the least peak first, which is below that of the graph's order on wide graphs."""
    graph = wide(120, seed)
    found = greedy_orders(graph)
    for one in found:
        runs = one.schedule.bind(graph).tolist()
        assert sorted(runs) == list(range(graph.num_ops))
        assert simulate(graph, Schedule(graph.op_names, runs)).peak_bytes == one.peak_bytes
    assert [one.peak_bytes for one in found] == sorted(one.peak_bytes for one in found)
    assert found[0].peak_bytes < simulate(graph, Schedule.store_all(graph)).peak_bytes


def test_the_least_budget_that_a_search_names_in_a_free_order():
    """The same bytes, and a plan there."""
    graph = layered(60, 1)
    least = leanest_in_free_order(graph)
    assert least_memory_bytes(graph)[0] <= least.peak_bytes < greedy_orders(graph)[0].peak_bytes
    options = {"order": "free", "effort": 0.2}
    plan = local_search(graph, least.peak_bytes, **options)
    assert plan.feasible
    below = local_search(graph, least_memory_bytes(graph)[0], **options)
    if not below.feasible:
        assert below.min_feasible_bytes == least.peak_bytes
