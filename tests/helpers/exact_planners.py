"""Graphs, budgets and checks for planners that hand the whole problem to a solver."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
from chains import random_chain, random_graph
from fixed_order import fixed_order_optimum
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.moccasin import moccasin

from schedsim import Graph, Op, Schedule, simulate
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER


def small_graph(rng, most_ops: int) -> Graph:
    """A random graph with every feature, or a chain of two stages as a graph."""
    if rng.random() < 0.3:
        return random_chain(rng, int(rng.integers(1, 3))).graph
    return random_graph(rng, int(rng.integers(2, most_ops + 1)))


def budgets_of(rng, graph) -> set[int]:
    """The least conceivable one, and two up to the store-all peak."""
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    least, _ = least_memory_bytes(graph)
    return {least, *rng.integers(min(least, peak), peak + 1, 2).tolist()}


def without_cuts():
    """The solvers left to themselves: the cuts, which have the first word, say nothing."""
    return patch.object(CutSearch, "run")


def from_store_all(graph, budget, **options):
    """`moccasin` without a start by the local search, which without cuts ends by time alone."""
    return moccasin(graph, budget, start=Schedule.store_all(graph), **options)


def check(plan, graph, budget, want):
    """The plan is the optimum of its class, or says with proof that there is none."""
    if math.isinf(want):
        assert not plan.feasible
        assert plan.proven_infeasible
        return
    assert plan.status == "optimal"
    assert plan.makespan_s == pytest.approx(want, rel=1e-9)
    assert simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes <= budget
    if plan.bound_scope == FIXED_ORDER:
        assert fixed_order_optimum(graph, budget) == pytest.approx(want, rel=1e-9)
    elif plan.bound_scope == ANY_SCHEDULE:
        assert exhaustive(graph, budget).makespan_s == pytest.approx(want, rel=1e-9)


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
