"""Rotor, frontier and auto against known exact answers, and against the replay."""

from __future__ import annotations

import json
import math
from functools import lru_cache

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains import rotor as rotor_module
from schedsim.algorithms.chains.frontier import exact_frontier, frontier
from schedsim.algorithms.chains.persistent import MAX_STAGES, Problem, WorkLimitReached
from schedsim.algorithms.chains.rotor import exact_unit, rotor
from tiers import examples

from schedsim import Chain, Schedule, load, simulate
from schedsim.errors import PlannerLimitError

TRUTH = INSTANCES / "chain" / "truth.json"
NAMES = sorted(json.loads(TRUTH.read_text())) if TRUTH.exists() else ["absent"]


@lru_cache
def instance(name: str) -> tuple[Chain, dict]:
    chain = load(INSTANCES / "chain" / f"{name}.json")
    assert isinstance(chain, Chain)
    return chain, json.loads(TRUTH.read_text())[name]


@needs_instances
@pytest.mark.parametrize("name", NAMES)
def test_frontier_is_the_known_one(name):
    """Every break point of the exact curve, and no other, on every shared chain."""
    chain, truth = instance(name)
    curve = exact_frontier(chain)
    points = [list(p) for p in zip(curve.budget_bytes.tolist(), curve.makespan_s, strict=True)]
    assert points == truth["persistent_frontier"]
    assert Problem(chain).min_feasible_bytes == truth["min_feasible_bytes"]


@needs_instances
@pytest.mark.parametrize("planner", [rotor, frontier], ids=["rotor", "frontier"])
@pytest.mark.parametrize("name", NAMES)
def test_planner_reaches_every_break_point(name, planner):
    """At each budget of the known curve the plan has that time, and fits in the replay."""
    chain, truth = instance(name)
    for budget, makespan in truth["persistent_frontier"]:
        plan = planner(chain, budget)
        replay = simulate(chain, plan.schedule)
        assert replay.peak_bytes <= budget
        assert (plan.status, plan.makespan_s, replay.makespan_s) == ("optimal", makespan, makespan)


@needs_instances
@pytest.mark.parametrize("planner", [rotor, frontier, auto], ids=["rotor", "frontier", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_one_byte_below_the_least_is_infeasible(name, planner):
    """The plan says infeasible, which budget would do, and an op that exists."""
    chain, truth = instance(name)
    plan = planner(chain, truth["min_feasible_bytes"] - 1)
    assert (plan.status, plan.schedule) == ("infeasible", None)
    assert plan.min_feasible_bytes == truth["min_feasible_bytes"]
    assert plan.binding_op in chain.op_names


@needs_instances
@pytest.mark.parametrize("name", ["ushape_L41", "heavytail_L40_s7", "resnet_L50"])
def test_slots_bracket_the_optimum(name):
    """With slots far too coarse to be exact, the bound stays below the optimum, the plan above."""
    chain, truth = instance(name)
    for budget, makespan in truth["persistent_frontier"][::7]:
        problem = Problem(chain)
        for unit in (2, 5, 11):
            down = problem.solve_slots(budget, unit, round_up=False)
            up = problem.solve_slots(budget, unit, round_up=True)
            assert problem.time_s(down, budget) <= makespan <= problem.time_s(up, budget)
            schedule, _ = problem.schedule(up, budget)
            if schedule is not None:
                replay = simulate(chain, schedule)
                assert replay.peak_bytes <= budget
                assert replay.makespan_s == problem.time_s(up, budget)


@given(seed=st.integers(0, 10**6), num_stages=st.integers(1, 12), integer_times=st.booleans())
@settings(max_examples=examples(150), deadline=None, derandomize=True)
def test_exact_curve_agrees_with_slots_and_replay(seed, num_stages, integer_times):
    """On random chains the two programmes agree at and just below every break point."""
    chain = random_chain(np.random.default_rng(seed), num_stages, integer_times=integer_times)
    curve = exact_frontier(chain)
    assert curve.makespan_s[-1] == pytest.approx(chain.store_all_s, rel=1e-12)
    assert np.all(np.diff(curve.budget_bytes) > 0)
    assert np.all(np.diff(curve.makespan_s) < 0)
    problem = Problem(chain)
    for k, (budget, makespan) in enumerate(
        zip(curve.budget_bytes.tolist(), curve.makespan_s.tolist(), strict=True)
    ):
        table = problem.solve_slots(budget, 1, round_up=True)
        assert problem.time_s(table, budget) == makespan
        replay = simulate(chain, problem.schedule(table, budget)[0])
        assert replay.peak_bytes <= budget
        assert replay.makespan_s == pytest.approx(makespan, rel=1e-12)
        below = curve.makespan_s[k - 1] if k else math.inf
        assert (
            problem.time_s(problem.solve_slots(budget - 1, 1, round_up=True), budget - 1) == below
        )


def test_repeated_sub_chains_share_rows_without_changing_the_curve():
    """Two alternating stages make O(L) rows; a hair of difference changes nothing but that."""
    num = 16
    columns = {
        "backward_s": [6, 8] * (num // 2),
        "output_bytes": [4, 6] * (num // 2),
        "saved_bytes": [30, 20] * (num // 2),
    }
    forward = [3, 4] * (num // 2)
    chain = Chain.from_arrays("alternating", 6, forward_s=forward, **columns)
    # No two stages are of a kind any more, so no row is shared.
    uneven = [f * (1 + i * 2.0**-30) for i, f in enumerate(forward)]
    broken = Chain.from_arrays("broken", 6, forward_s=uneven, **columns)
    assert Problem(chain).num_rows < 5 * num
    assert Problem(broken).num_rows == num * (num + 1) // 2
    first, second = exact_frontier(chain), exact_frontier(broken)
    for budget, makespan in zip(first.budget_bytes, first.makespan_s, strict=True):
        at = np.searchsorted(second.budget_bytes, budget, side="right") - 1
        assert second.makespan_s[at] == pytest.approx(makespan, rel=1e-7)


def test_gap_is_proven_and_shrinks():
    """Sizes without a common unit: the plan's bound holds against the exact optimum."""
    rng = np.random.default_rng(5)
    output = rng.integers(10**6, 10**7, 24)
    chain = Chain.from_arrays(
        "prime",
        10**6 + 3,
        forward_s=rng.random(24),
        backward_s=rng.random(24),
        output_bytes=output,
        saved_bytes=output + rng.integers(10**6, 10**8, 24),
    )
    problem = Problem(chain)
    assert exact_unit(problem) == 1
    store_all = simulate(chain, Schedule.store_all(chain)).peak_bytes
    budget = (problem.min_feasible_bytes + store_all) // 2
    optimum = frontier(chain, budget).makespan_s
    coarse = rotor(chain, budget, num_slots=20, gap=1.0)
    fine = rotor(chain, budget, num_slots=20, gap=1e-3)
    for plan in (coarse, fine):
        assert plan.lower_bound_s <= optimum * (1 + 1e-9)
        assert plan.makespan_s >= optimum * (1 - 1e-9)
    assert fine.gap <= 1e-3
    assert fine.options["num_slots"] > 20


def test_an_interrupted_planner_gives_its_best_so_far(monkeypatch):
    """Interrupted in its second round, rotor returns the first round's plan, and says so."""
    rng = np.random.default_rng(2)
    output = rng.integers(10**6, 10**7, 20)
    chain = Chain.from_arrays(
        "long", 10**6 + 3, forward_s=rng.random(20), backward_s=rng.random(20),
        output_bytes=output, saved_bytes=output + rng.integers(10**6, 10**8, 20),
    )  # fmt: skip
    budget = Problem(chain).min_feasible_bytes * 2
    rounds = []
    whole = rotor_module._both_roundings

    def second_is_interrupted(*arguments):
        rounds.append(arguments)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(rotor_module, "_both_roundings", second_is_interrupted)
    plan = rotor(chain, budget, num_slots=10, gap=0.0)
    assert plan.feasible
    assert plan.search.interrupted
    assert plan.peak_bytes <= budget


def test_limits_are_refused_with_a_way_out():
    """Too much work, or too many stages, is an error that names another planner."""
    rng = np.random.default_rng(0)
    chain = random_chain(rng, 20, integer_times=False)
    with pytest.raises(WorkLimitReached) as caught:
        exact_frontier(chain, max_points=10)
    assert "rotor" in caught.value.hint
    num = MAX_STAGES + 1
    ones = [1] * num
    long = Chain.from_arrays(
        "long", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=ones
    )
    with pytest.raises(PlannerLimitError, match="4001 stages"):
        rotor(long, 100)


@pytest.mark.slow
def test_auto_beyond_the_exact_recurrence():
    """A chain of 5,000 stages gets the best heuristic, with a status that claims nothing."""
    ones = [1] * (MAX_STAGES + 1000)
    long = Chain.from_arrays(
        "long", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=ones
    )
    plan = auto(long, 200)
    assert plan.peak_bytes <= 200
    assert plan.status == "feasible"
    assert plan.lower_bound_s == long.store_all_s
