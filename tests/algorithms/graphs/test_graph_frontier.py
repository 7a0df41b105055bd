"""Memory/time curves of graphs against the optimum at every budget, bounds and interrupts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs import graph_frontier as module
from schedsim.algorithms.graphs.graph_frontier import graph_frontier
from schedsim.algorithms.graphs.local_search import local_search
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, SchedsimError, Schedule, simulate
from schedsim.plans.curves import ParetoCurve
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered, nested_skips


def check_curve(curve: ParetoCurve, graph: Graph) -> None:
    """Ascending budgets, falling times, true replays, bounds that never lie above."""
    for point in curve.points:
        replay = simulate(graph, point.schedule)
        assert (replay.peak_bytes, replay.makespan_s) == (point.budget_bytes, point.makespan_s)
        assert point.lower_bound_s <= point.makespan_s
        if point.exact:
            assert point.makespan_s == pytest.approx(point.lower_bound_s)
    budgets = [point.budget_bytes for point in curve.points]
    times = [point.makespan_s for point in curve.points]
    assert budgets == sorted(set(budgets))
    assert times == sorted(set(times), reverse=True)
    assert times[-1] == graph.store_all_s
    assert curve.least_memory_bytes <= budgets[0]
    steps = [step.lower_bound_s for step in curve.bounds]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("seed", range(6))
def test_tiny_curves_against_the_optimum_at_every_budget(seed):
    """The curve is never below the optimum, the bound never above it."""
    graph = random_training_graph(np.random.default_rng(seed), 2 + seed % 2)
    curve = graph_frontier(graph, order="free", effort=0.2)
    check_curve(curve, graph)
    most = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in range(curve.least_memory_bytes - 1, most + 1):
        best_s = exhaustive(graph, budget).makespan_s or math.inf
        found = [p.makespan_s for p in curve.points if p.budget_bytes <= budget]
        bounds = [b.lower_bound_s for b in curve.bounds if b.budget_bytes >= budget]
        assert min(found, default=math.inf) >= best_s * (1 - 1e-9)
        assert max(bounds, default=graph.store_all_s) <= best_s * (1 + 1e-9)
        if budget < curve.least_memory_bytes:
            assert best_s == math.inf
        if curve.exact:
            assert min(found, default=math.inf) == pytest.approx(best_s)


def test_a_chain_of_unit_ops_is_proven_whole():
    """Every budget from least to store-all is a break point, or is proven to be none."""
    graph = unit_training_chain(4)
    curve = graph_frontier(graph, order="free", effort=0.5)
    check_curve(curve, graph)
    expected = {}
    for budget in range(curve.points[0].budget_bytes, curve.points[-1].budget_bytes + 1):
        time_s = exhaustive(graph, budget).makespan_s
        if not expected or time_s < min(expected.values()):
            expected[budget] = time_s
    assert {p.budget_bytes: p.makespan_s for p in curve.points} == expected
    assert not exhaustive(graph, curve.points[0].budget_bytes - 1).feasible


@pytest.mark.slow
def test_no_more_points_than_asked_for_are_looked_for():
    """The ends and what the descent meets, but no refinement."""
    graph = unit_training_chain(12)
    few = graph_frontier(graph, effort=0.1, num_points=2)
    check_curve(few, graph)
    assert len(graph_frontier(graph, effort=0.4).points) > len(few.points) >= 2


@pytest.mark.parametrize("by_plan", [True, False])
def test_interrupting_gives_the_curve_so_far(monkeypatch, by_plan):
    """Whether the search notes the interrupt in its plan, or it comes between two searches."""
    graph = unit_training_chain(10)
    calls = []

    def stopping(*args, **more):
        calls.append(args[1])
        if len(calls) == 3 and not by_plan:
            raise KeyboardInterrupt
        plan = local_search(*args, **more)
        if len(calls) == 3:
            plan = replace(plan, search=replace(plan.search, ended_by="interrupt"))
        return plan

    monkeypatch.setattr(module, "local_search", stopping)
    curve = graph_frontier(graph, effort=0.2)
    assert (len(calls), curve.interrupted, curve.exact) == (3, True, False)
    assert len(curve.points) > 1
    check_curve(curve, graph)


@pytest.mark.parametrize("options", [{"time_limit_s": -1}, {"num_points": 1}, {"order": "any"}])
def test_options_out_of_range_are_refused(options):
    """With the value in the message."""
    with pytest.raises(SchedsimError, match=str(next(iter(options.values())))):
        graph_frontier(unit_training_chain(3), **options)


def test_a_long_preparation_leaves_more_than_one_point(monkeypatch):
    """Where it took more than the share of the descent, there was the store-all point alone."""
    monkeypatch.setattr(module._Curve, "add_segments", lambda _: None)  # as of one large block
    graph = random_training_graph(np.random.default_rng(6), 12)
    effort = Effort(1.0)
    curve = module._Curve(graph, "fixed", effort, num_points=8, seed=0)
    effort.spend(0.5)
    curve.descend()
    assert len(curve.found) > 1


def test_without_effort_segments_fill_the_curve():
    """Thousands of ops leave no time for searches: the curve has points between its ends anyway."""
    graph = nested_skips(600)
    curve = graph_frontier(graph, effort=0.0, num_points=6)
    assert len(curve.points) == 6
    check_curve(curve, graph)


@pytest.mark.slow
def test_the_effort_is_kept_and_gives_more_than_its_ends():
    """Searches at the least memory alone once took three times what a curve was given."""
    graph = nested_skips(400)
    effort = Effort(1.0)
    curve = graph_frontier(graph, effort=effort, num_points=12)
    assert effort.spent <= 1.1
    assert len(curve.points) >= 8
    check_curve(curve, graph)


@pytest.mark.slow
def test_many_ops_have_many_points():
    """Each search was a start anew: 1.2 units gave seven points on 600 ops, ends included."""
    graph = layered(600)
    effort = Effort(1.2)
    curve = graph_frontier(graph, effort=effort)
    check_curve(curve, graph)
    assert len(curve.points) >= 16
    assert effort.spent <= 1.3


def test_what_a_sweep_missed_is_searched():
    """A sweep that hardly ran says nothing of the least memory: the curve ended where it did."""
    graph = nested_skips(200)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    curve = module._Curve(graph, "fixed", Effort(0.6), num_points=24, seed=0)
    curve.lowest_vain = int(0.9 * peak)
    curve.descend()
    assert curve.asked[0] == curve.lowest_vain or curve.found[0].peak_bytes < curve.lowest_vain
    assert curve.found[0].peak_bytes < 0.8 * peak


@pytest.mark.parametrize("free_forwards", [1, 3])
def test_store_all_may_be_met_with_less_memory(free_forwards):
    """Where a repeat takes no time, a point beats it: the sweep had none above to start from."""
    graph = unit_training_chain(6)
    ops = [replace(op, time_s=0.0) if k < free_forwards else op for k, op in enumerate(graph.ops)]
    graph = replace(graph, ops=tuple(ops))
    check_curve(graph_frontier(graph, effort=0.1, num_points=8), graph)
