"""checkmate, moccasin and cuts against brute force over their classes, and on known instances."""

from __future__ import annotations

import builtins
import json
import math
from contextlib import nullcontext

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from exact_planners import (
    budgets_of,
    check,
    from_store_all,
    small_graph,
    twice_in_a_stage,
    without_cuts,
)
from fixed_order import fixed_order_optimum, optimum_at, staged_frontier
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.exhaustive import exhaustive
from schedsim.algorithms.graphs.checkmate import checkmate
from schedsim.algorithms.graphs.cuts import cuts
from schedsim.algorithms.graphs.moccasin import moccasin
from tiers import examples, slow_where

import schedsim
from schedsim import Graph, Op, Schedule, load, simulate
from schedsim.api import try_plan
from schedsim.errors import MissingDependencyError, SchedsimError, UnsupportedError

ortools = pytest.importorskip("ortools", reason="moccasin needs the extra cp")


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(60))
def test_checkmate_equals_brute_force(seed):
    """Every set of repeats before first runs is tried; no other is faster."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 4)
    frontier = staged_frontier(graph)
    for budget in budgets_of(rng, graph):
        with without_cuts():
            plan = checkmate(graph, budget)
        check(plan, graph, budget, optimum_at(frontier, budget))


def instance(name, fraction):
    """A shared graph with the row of what is known about it at a budget."""
    graph = load(INSTANCES / "dag" / f"{name}.json")
    rows = json.loads((INSTANCES / "dag" / "best-known.json").read_text())
    rows = [r for r in rows if r["graph"] == name and r["budget_fraction"] == fraction]
    return graph, rows[0]


@needs_instances
@pytest.mark.parametrize(
    ("name", "fraction", "planner"),
    slow_where(
        [
            ("linear16_train", 0.5, checkmate),
            ("linear16_train", 0.8, from_store_all),
            ("cm_fcn_8_vgg_train", 0.8, from_store_all),
            ("cm_mobilenet_train", 0.8, cuts),
            ("cm_resnet50_train", 0.8, cuts),
            ("linear64_train", 0.5, cuts),
        ],
        lambda row: row[:2] == ("linear16_train", 0.5),
    ),
)
def test_known_optima(name, fraction, planner):
    """Proven, and equal to what is known."""
    graph, row = instance(name, fraction)
    with nullcontext() if planner is cuts else without_cuts():
        plan = planner(graph, row["budget_bytes"], time_limit_s=120)
    assert plan.status == "optimal"
    assert plan.makespan_s == pytest.approx(row["best_s"], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["fixed", "free"])
@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(60))
def test_plans_read_off_cuts(order, seed):
    """Within the budget, never below the optimum, and equal to it where it says optimal."""
    rng = np.random.default_rng(seed)
    graph = small_graph(rng, 7)
    for budget in budgets_of(rng, graph):
        plan = cuts(graph, budget, order=order, effort=0.05)
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
    copied = Graph("copied", (Op("copy", stream="d2h"),))
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
