"""Moccasin: retention intervals by constraint programming, against brute force over its class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_planners import (
    budgets_of,
    check,
    from_store_all,
    small_graph,
    twice_in_a_stage,
    without_cuts,
)
from fixed_order import optimum_at, staged_frontier
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs import moccasin as module
from schedsim.algorithms.graphs.moccasin import moccasin, retention_scope
from tiers import examples
from training_graphs import unit_training_chain

from schedsim import Schedule, simulate
from schedsim.errors import PlannerLimitError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(60))
def test_moccasin_equals_brute_force(seed):
    """The same with at most one repeat of each op."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 5)
    frontier = staged_frontier(graph, 1)
    for budget in budgets_of(rng, graph):
        with without_cuts():
            plan = from_store_all(graph, budget, num_workers=1)
        check(plan, graph, budget, optimum_at(frontier, budget))


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(40))
def test_moccasin_in_free_order(seed):
    """Never faster than the optimum of all, and equal where that repeats no op twice."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 5)
    for budget in budgets_of(rng, graph):
        best = exhaustive(graph, budget)
        with without_cuts():
            plan = from_store_all(graph, budget, order="free", num_workers=1)
        if not best.feasible:
            assert not plan.feasible
            continue
        assert plan.lower_bound_s <= best.makespan_s or "at most" in str(plan.bound_scope)
        counts = np.bincount(best.schedule.bind(graph))
        if counts.max() <= 2:
            assert plan.status == "optimal"
            assert plan.makespan_s == pytest.approx(best.makespan_s)
        elif plan.feasible:
            assert plan.makespan_s >= best.makespan_s


def test_more_intervals_hold_more_schedules():
    """Op 3 needs f0 three times in order: two runs of an op are too few, and the scope says so."""
    graph = twice_in_a_stage()
    with without_cuts():
        two = from_store_all(graph, 10, num_workers=1)
        three = from_store_all(graph, 10, num_workers=1, num_intervals=3, order="free")
    assert not two.feasible
    assert three.feasible
    assert simulate(graph, three.schedule).peak_bytes <= 10
    best = exhaustive(graph, 10).makespan_s
    assert three.makespan_s >= best


def test_the_class_is_named():
    """By the most repeats of an op, and in order by where they may stand."""
    fixed, free = retention_scope("fixed", 2), retention_scope("free", 3)
    assert (fixed.most_repeats, fixed.rounds) == (1, 1)
    assert free.most_repeats == 2
    assert fixed < FIXED_ORDER
    assert free < ANY_SCHEDULE


def test_graphs_beyond_the_solver_are_refused(monkeypatch):
    """Only where the solver would have to be asked."""
    monkeypatch.setattr(module, "MAX_OPS", 10)
    graph = unit_training_chain(8)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    assert moccasin(graph, peak).feasible
    with without_cuts(), pytest.raises(PlannerLimitError, match="17 ops, more than 10") as caught:
        from_store_all(graph, peak - 1)
    assert "heuristic" in caught.value.hint


def test_no_model_is_built_that_the_time_left_is_too_short_for(monkeypatch):
    """The plan is then the best of those found before, and the clock is named."""
    graph = unit_training_chain(8)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    monkeypatch.setattr(module, "_LINKS_PER_UNIT", 1e-9)
    with without_cuts():
        plan = from_store_all(graph, peak - 1, time_limit_s=5.0)
        assert (plan.feasible, plan.search.ended_by) == (False, "clock")
        assert plan.lower_bound_s == graph.store_all_s
        assert from_store_all(graph, peak - 1, effort=2.0).feasible  # counted work is no clock


def test_a_start_is_looked_for_again_where_the_first_part_finds_none(monkeypatch):
    """The solver rarely finds a first schedule of a large graph by itself."""
    graph, efforts = unit_training_chain(8), []
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes

    def second_time(graph, budget_bytes, *, effort, **options):
        efforts.append(effort.left)
        return search(graph, budget_bytes if len(efforts) > 1 else 1, effort=effort, **options)

    def not_proven(graph, budget_bytes, **options):
        plan = second_time(graph, budget_bytes, **options)
        return replace(plan, least=LeastBudget(None, None, 0)) if len(efforts) == 1 else plan

    search = module.local_search
    monkeypatch.setattr(module, "local_search", not_proven)
    assert moccasin(graph, peak - 1, effort=1.0).feasible
    assert len(efforts) == 2
    assert efforts[0] < efforts[1]
    efforts.clear()
    monkeypatch.setattr(module, "local_search", second_time)
    assert moccasin(graph, 1, effort=1.0).proven_infeasible
    assert len(efforts) == 1
