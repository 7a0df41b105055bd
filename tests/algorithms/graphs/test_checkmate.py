"""Checkmate."""

from __future__ import annotations

import math

import pytest
from fixed_order import fixed_order_optimum, optimum_at, staged_frontier
from schedsim.algorithms.graphs.checkmate import checkmate

from schedsim import Graph, Op, Schedule, simulate
from schedsim.workloads.synthetic_graphs import layered

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


def twice_in_a_stage() -> Graph:
    """Op 3 reads t0 and t1, and cannot be reached with each op repeated once in order."""
    ops = (
        Op("op0", time_s=1, writes={"t0": 2}, workspace_bytes=1),
        Op("op1", time_s=1, writes={"t1": 5}, workspace_bytes=5),
        Op("op2", time_s=1, reads=("t0",), writes={"t2": 3}, workspace_bytes=5),
        Op("op3", time_s=1, reads=("t0", "t1"), writes={"t3": 2}),
        Op("op4", time_s=1, writes={"t4": 1}),
    )
    return Graph("twice", ops)


def test_rounds_make_a_difference():
    """In 10 bytes op1 runs alone and op2 beside t0 alone: op1 must run again before op0 does.

    That is out of order, so that one round of repeats before op3 does not do; two rounds do, and
    reach the optimum over every schedule with this order of first runs.
    """
    graph = twice_in_a_stage()
    assert fixed_order_optimum(graph, 10) == 8
    assert math.isinf(optimum_at(staged_frontier(graph), 10))
    one = checkmate(graph, 10)
    assert not one.feasible
    assert one.proven_infeasible
    assert "one round" in str(one.least.scope)
    two = checkmate(graph, 10, passes=2)
    assert (two.makespan_s, two.status) == (8, "optimal")


def test_a_milp_whose_first_node_takes_more_than_the_effort_is_not_begun():
    """Nothing would end the solver; what its relaxation proves is kept."""
    graph = layered(49, 1)
    budget = int(0.7 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = checkmate(graph, budget, effort=0.2)
    assert plan.search.ended_by == "work"
    assert plan.status != "optimal"
    assert plan.lower_bound_s > graph.store_all_s


def test_where_nothing_is_found_a_budget_is_named_that_is_enough():
    graph = layered(49, 1)
    budget = int(0.6 * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = checkmate(graph, budget, effort=0.05)
    assert not plan.feasible
    assert not plan.proven_infeasible
    found = plan.least.found_bytes
    assert found > budget
    assert checkmate(graph, found, effort=0.05).feasible
