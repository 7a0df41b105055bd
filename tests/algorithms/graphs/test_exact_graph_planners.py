"""checkmate, moccasin and cuts against brute force over their classes, and on known instances."""

from __future__ import annotations

import builtins
import json
import math
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_chain, random_graph
from fixed_order import fixed_order_optimum, optimum_at, staged_frontier
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.checkmate import checkmate
from schedsim.algorithms.graphs.cuts import cuts
from schedsim.algorithms.graphs.moccasin import moccasin

import schedsim
from schedsim import Graph, Op, Schedule, load, simulate
from schedsim.api import try_plan
from schedsim.errors import MissingDependencyError, SchedsimError, UnsupportedError
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


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


@given(seed=st.integers(0, 10**12))
@settings(max_examples=60)
def test_checkmate_equals_brute_force(seed):
    """Every set of repeats before first runs is tried; no other is faster."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 4)
    frontier = staged_frontier(graph)
    for budget in budgets_of(rng, graph):
        with without_cuts():
            plan = checkmate(graph, budget)
        check(plan, graph, budget, optimum_at(frontier, budget))


@given(seed=st.integers(0, 10**12))
@settings(max_examples=60)
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
@settings(max_examples=40)
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


def instance(name, fraction):
    """A shared graph with the row of what is known about it at a budget."""
    graph = load(INSTANCES / "dag" / f"{name}.json")
    rows = json.loads((INSTANCES / "dag" / "best-known.json").read_text())
    rows = [r for r in rows if r["graph"] == name and r["budget_fraction"] == fraction]
    return graph, rows[0]


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


@needs_instances
@pytest.mark.parametrize(
    ("name", "fraction", "planner"),
    [
        ("linear16_train", 0.5, checkmate),
        ("linear16_train", 0.8, from_store_all),
        ("cm_fcn_8_vgg_train", 0.8, from_store_all),
        ("cm_mobilenet_train", 0.8, cuts),
        ("cm_resnet50_train", 0.8, cuts),
        ("linear64_train", 0.5, cuts),
    ],
)
def test_known_optima(name, fraction, planner):
    """Proven, and equal to what is known."""
    graph, row = instance(name, fraction)
    with nullcontext() if planner is cuts else without_cuts():
        plan = planner(graph, row["budget_bytes"], time_limit_s=120)
    assert plan.status == "optimal"
    assert plan.makespan_s == pytest.approx(row["best_s"], rel=1e-9)


@pytest.mark.parametrize("order", ["fixed", "free"])
@given(seed=st.integers(0, 10**12))
@settings(max_examples=60)
def test_plans_read_off_cuts(order, seed):
    """Within the budget, never below the optimum, and equal to it where it says optimal."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 7)
    for budget in budgets_of(rng, graph):
        plan = cuts(graph, budget, order=order)
        if order == "fixed":
            best = fixed_order_optimum(graph, budget)
        else:
            found = exhaustive(graph, budget)
            best = found.makespan_s if found.feasible else math.inf
        assert plan.lower_bound_s <= best * (1 + 1e-9)
        if plan.feasible:
            assert simulate(graph, plan.schedule).peak_bytes == plan.peak_bytes <= budget
            assert plan.makespan_s >= best * (1 - 1e-9)
            assert (plan.status == "optimal") == (plan.lower_bound_s == plan.makespan_s)
        elif plan.proven_infeasible:
            assert math.isinf(best)


def test_large_sizes_are_rounded_safely():
    """Sizes without a common divisor, too large for the solver: the plan fits on true bytes."""
    sizes = [2**40 + 7919 * k * k + 1 for k in range(6)]
    ops = [Op(f"f{i}", time_s=1.5**i, writes={f"t{i}": sizes[i]}) for i in range(6)]
    ops += [Op(f"b{i}", "backward", 1, reads=(f"t{i}",)) for i in range(5, -1, -1)]
    graph = Graph("large", tuple(ops))
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in (peak - 1, sum(sizes[1:5]), sum(sizes[4:])):
        want = fixed_order_optimum(graph, budget)
        with without_cuts():
            plans = [checkmate(graph, budget), from_store_all(graph, budget, num_workers=1)]
        for plan in plans:
            assert plan.peak_bytes <= budget
            assert plan.lower_bound_s <= want * (1 + 1e-9)
            assert plan.makespan_s >= want * (1 - 1e-9)
        assert plans[1].makespan_s == pytest.approx(want)


def test_start_is_used():
    """A schedule given to start from is never lost, even without time."""
    graph = twice_in_a_stage()
    start = Schedule.from_names(["op0", "op1", "op0", "op2", "op1", "op0", "op3", "op4"])
    assert simulate(graph, start).peak_bytes <= 10
    for planner in (checkmate, moccasin):
        assert planner(graph, 10, start=start, time_limit_s=0.0).makespan_s == 8


def test_a_start_from_outside_the_class():
    """Where the class holds no schedule, the start is the answer, and nothing says infeasible."""
    graph = twice_in_a_stage()
    start = Schedule.from_names(["op0", "op1", "op0", "op2", "op1", "op0", "op3", "op4"])
    for planner in (checkmate, moccasin):
        with without_cuts():
            plan = planner(graph, 10, start=start)
        assert plan.makespan_s == plan.lower_bound_s == 8
        assert "of repeats" in str(plan.bound_scope)
        assert not plan.proven_infeasible


def test_a_start_in_another_order_is_refused():
    """Its plan would be called one of the fixed order."""
    graph = twice_in_a_stage()
    start = Schedule.from_names(["op4", "op0", "op1", "op2", "op3"])
    for planner in (checkmate, moccasin):
        with pytest.raises(SchedsimError, match="op4 before op3"):
            planner(graph, 100, start=start)
    assert moccasin(graph, 100, order="free", start=start).feasible


def test_refusals():
    """What the planners do not do is said, with what to do instead."""
    graph = twice_in_a_stage()
    with pytest.raises(UnsupportedError, match="keeps the order") as caught:
        checkmate(graph, 10, order="free")
    assert "moccasin" in caught.value.hint
    with pytest.raises(SchedsimError, match="passes 0"):
        checkmate(graph, 10, passes=0)
    with pytest.raises(SchedsimError, match="num_intervals 0"):
        moccasin(graph, 10, num_intervals=0)
    copied = Graph("copied", (Op("copy", queue="d2h"),))
    for planner in ("checkmate", "moccasin"):
        with pytest.raises(UnsupportedError, match="several streams"):
            try_plan(copied, 10, planner)


def test_a_missing_solver_is_said_with_the_remedy(monkeypatch):
    """Without OR-Tools, the error names the extra; a comparison goes on without the planner."""
    real = builtins.__import__

    def without_ortools(name, *args, **kwargs):
        if name.startswith("ortools"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_ortools)
    graph = twice_in_a_stage()
    with pytest.raises(MissingDependencyError) as caught:
        moccasin(graph, 10)
    assert "pip install schedsim[cp]" in caught.value.hint
    with pytest.warns(schedsim.errors.PlannerSkippedWarning, match="moccasin left out"):
        assert len(schedsim.compare(graph, 100, ["store_all", "moccasin"])) == 1
