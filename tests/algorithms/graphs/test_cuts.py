"""Plans read off the bound: what the cuts evict is recomputed when it is needed."""

from __future__ import annotations

import pytest
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.cuts import cuts

import schedsim
from schedsim import Schedule, simulate
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.workloads.synthetic_graphs import layered

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


def test_cuts_repeat_what_is_cheapest():
    """One tensor too many at the turn: one of the ops that take 1 s runs again."""
    chain = schedsim.Chain.from_arrays(
        "five",
        1,
        forward_s=[1, 5, 1, 5, 1],
        backward_s=[1] * 5,
        output_bytes=[10] * 5,
        saved_bytes=[10] * 5,
    )
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    plan = cuts(chain.graph, peak - 10, order="free")
    assert (plan.status, plan.bound_scope) == ("optimal", ANY_SCHEDULE)
    assert plan.makespan_s == exhaustive(chain, peak - 10).makespan_s == chain.store_all_s + 1


def test_a_schedule_that_does_not_fit_is_repaired():
    """Half of the store-all peak, where what the cuts ask for needs more; the same every time."""
    graph = layered(60)
    budget = simulate(graph, Schedule.store_all(graph)).peak_bytes // 2
    plan = cuts(graph, budget, effort=0.4)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= budget
    assert plan.lower_bound_s <= plan.makespan_s
    assert cuts(graph, budget, effort=0.4).schedule.names == plan.schedule.names


def test_where_nothing_is_found_the_least_budget_named_is_enough():
    """The plan names the peak of a schedule that the planner finds again there."""
    graph = layered(60, 2)
    least = least_memory_bytes(graph)[0]
    plan = cuts(graph, least, effort=0.2)
    assert not plan.feasible
    assert plan.min_feasible_bytes > least
    assert cuts(graph, plan.min_feasible_bytes, effort=0.2).feasible
