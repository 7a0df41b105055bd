"""Plans where what the cuts ask for does not fit."""

from __future__ import annotations

import math

import pytest
from schedsim.algorithms.graphs._repaired_cuts import RepairedCuts
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.cuts import cuts

from schedsim import Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered


@pytest.mark.slow
def test_a_schedule_that_does_not_fit_is_repaired():
    """Half of the store-all peak, where what the cuts ask for needs more; the same every time."""
    graph = layered(60)
    budget = simulate(graph, Schedule.store_all(graph)).peak_bytes // 2
    plan = cuts(graph, budget, effort=0.4)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= budget
    assert plan.lower_bound_s <= plan.makespan_s
    assert cuts(graph, budget, effort=0.4).schedule.names == plan.schedule.names


@pytest.mark.slow
def test_where_nothing_is_found_the_least_budget_named_is_enough():
    """The plan names the peak of a schedule that the planner finds again there."""
    graph = layered(60, 2)
    least = least_memory_bytes(graph)[0]
    for budget in (least - 1, least):
        plan = cuts(graph, budget, effort=0.2)
        assert not plan.feasible
        assert plan.min_feasible_bytes > least
        assert cuts(graph, plan.min_feasible_bytes, effort=0.2).feasible


def test_a_schedule_that_fits_is_gone_on_from():
    """What is suggested is no worse in the end, and ends the search where it is fast enough."""
    graph = layered(60)
    store_all = Schedule.store_all(graph)
    peak = simulate(graph, store_all).peak_bytes
    slow = Schedule(graph.op_names, [*range(30), 3, *range(30, 60)])
    found = RepairedCuts(graph, peak, 0).run([slow], graph.store_all_s, Effort(0.1))
    assert found.names == store_all.names
    none = RepairedCuts(graph, least_memory_bytes(graph)[0], 0)
    assert none.run([], -math.inf, Effort(0.02)) is None
    assert none.moves > 0
