"""What every planner promises, on two thousand random chains."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms import PLANNERS, get_planner
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.exhaustive import exhaustive
from tiers import examples, slow_where

import schedsim
from schedsim import Schedule, simulate
from schedsim.api import try_plan
from schedsim.errors import SchedsimError
from schedsim.files.document import from_dict, to_dict
from schedsim.plans.scope import ANY_SCHEDULE

# Those that offload, and searches over all schedules, have tests of their own.
CHAIN_PLANNERS = [
    name
    for name, info in PLANNERS.items()
    if "chain" in info.kinds and name not in ("exhaustive", "chain_optimum") and not info.needs_link
]


def some_budget(rng, chain) -> int:
    """Between a little below the least persistent budget and the store-all peak."""
    least = Problem(chain).min_feasible_bytes
    most = simulate(chain, Schedule.store_all(chain)).peak_bytes
    return int(rng.integers(max(0, least - 5), most + 2))


@pytest.mark.parametrize(
    "part", slow_where(range(4), lambda part: part > 1)
)  # of two thousand, to be shared by processes
@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 8), integers=st.booleans())
@settings(max_examples=examples(500))
def test_plans_keep_their_promises(part, seed, num_stages, integers):
    """Never over budget in the replay, never below the bound, optimal ones never beaten."""
    rng = np.random.default_rng([part, seed])
    chain = random_chain(rng, num_stages, integer_times=integers)
    budget = some_budget(rng, chain)
    plans = [try_plan(chain, budget, name) for name in CHAIN_PLANNERS]
    feasible = [plan for plan in plans if plan.feasible]
    fastest = min((plan.makespan_s for plan in feasible), default=0.0)
    others = (plan.makespan_s for plan in feasible if plan.planner != "auto")
    persistent, slack = min(others, default=0.0), 1 + 1e-9
    for plan in feasible:
        replay = simulate(chain, plan.schedule)
        assert replay.peak_bytes == plan.peak_bytes <= budget
        assert replay.makespan_s == plan.makespan_s
        assert plan.lower_bound_s <= plan.makespan_s
        if plan.bound_scope == ANY_SCHEDULE:
            assert plan.lower_bound_s <= fastest * (1 + 1e-9)
        if plan.status == "optimal":
            # All but `auto` make persistent schedules alone.
            assert plan.makespan_s <= (persistent if plan.planner != "auto" else fastest) * slack
    exact = {plan.planner: plan for plan in plans if plan.planner in ("rotor", "frontier")}
    assert len({plan.feasible for plan in exact.values()}) == 1
    [of_auto] = [plan for plan in plans if plan.planner == "auto"]
    if exact["rotor"].feasible:
        assert all(plan.status == "optimal" for plan in exact.values())
        assert of_auto.makespan_s <= fastest * slack
    else:
        assert not feasible
    for plan in plans:
        if not plan.feasible:
            assert plan.min_feasible_bytes > budget


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 4))
@settings(max_examples=examples(150))
def test_no_plan_beats_the_oracle(seed, num_stages):
    """Over all schedules nothing is faster than exhaustive, and its bound holds for everyone."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages)
    budget = some_budget(rng, chain)
    best = exhaustive(chain, budget)
    for name in CHAIN_PLANNERS:
        plan = try_plan(chain, budget, name)
        if plan.feasible:
            assert best.makespan_s <= plan.makespan_s
            if plan.bound_scope == ANY_SCHEDULE:
                assert plan.lower_bound_s <= best.makespan_s
    if not best.feasible:
        assert best.min_feasible_bytes > budget


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 20))
@settings(max_examples=examples(120))
def test_more_memory_never_costs_time(seed, num_stages):
    """Optimal planners: the makespan falls with the budget."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages, integer_times=False)
    least = Problem(chain).min_feasible_bytes
    for name in ("rotor", "frontier"):
        times = [try_plan(chain, least + step, name).makespan_s for step in range(0, 200, 17)]
        for less, more in pairwise(times):
            assert more <= less * (1 + 1e-9)


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 12), factor=st.integers(2, 9))
@settings(max_examples=examples(100))
def test_scaling(seed, num_stages, factor):
    """Bytes and budget scaled together change neither the makespan nor the schedule's shape."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages)
    budget = max(some_budget(rng, chain), Problem(chain).min_feasible_bytes)
    stages = []
    for stage in chain.stages:
        sizes = {name: getattr(stage, name) for name in stage.__slots__ if name.endswith("_bytes")}
        scaled_sizes = {n: None if size is None else factor * size for n, size in sizes.items()}
        stages.append(replace(stage, **scaled_sizes))
    larger = schedsim.Chain(
        "larger",
        factor * chain.input_bytes,
        tuple(stages),
        static_bytes=factor * chain.static_bytes,
    )
    for name in ("rotor", "frontier"):
        plan = try_plan(chain, budget, name)
        scaled = try_plan(larger, factor * budget, name)
        assert scaled.makespan_s == plan.makespan_s
        assert scaled.peak_bytes == factor * plan.peak_bytes


@given(seed=st.integers(0, 10**12), num_stages=st.integers(1, 8))
@settings(max_examples=examples(100))
def test_plans_survive_json(seed, num_stages):
    """Every planner's plan comes back the same from its file content."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, num_stages, integer_times=False)
    budget = some_budget(rng, chain)
    for name in CHAIN_PLANNERS:
        document = to_dict(try_plan(chain, budget, name))
        assert to_dict(from_dict(json.loads(json.dumps(document)))) == document


def test_unknown_planners_get_a_neighbour():
    """A slip in a planner's name gets the right one in the hint."""
    with pytest.raises(SchedsimError) as caught:
        get_planner("roter")
    assert "rotor" in caught.value.hint
