"""The oracle against enumeration, known optima, and the class it contains."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_chain, random_graph, unit_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.chains.chain_optimum import chain_optimum
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.exhaustive import exhaustive
from tiers import examples, slow_where

from schedsim import (
    InvalidScheduleError,
    PlannerLimitError,
    Schedule,
    load,
    simulate,
)


def by_enumeration(workload, budget: int, longest: int) -> float:
    """Least makespan over every sequence of ops up to a length, replayed one by one."""
    best = math.inf
    num_ops = len(workload.op_names)
    for length in range(num_ops, longest + 1):
        for runs in itertools.product(range(num_ops), repeat=length):
            if len(set(runs)) < num_ops:
                continue
            try:
                simulation = simulate(workload, Schedule(workload.op_names, runs))
            except InvalidScheduleError:
                continue
            if simulation.peak_bytes <= budget:
                best = min(best, simulation.makespan_s)
    return best


@pytest.mark.parametrize("seed", slow_where(range(6), lambda seed: seed >= 2))
def test_equals_enumeration_on_graphs_of_four_ops(seed):
    """All sequences of up to six runs: no schedule is faster, and the oracle's is among them."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 4)
    store_all = simulate(graph, Schedule.store_all(graph)).peak_bytes
    for budget in range(store_all, max(0, store_all - 15), -3):
        plan = exhaustive(graph, budget)
        expected = by_enumeration(graph, budget, 6)
        if plan.feasible and len(plan.schedule) <= 6:
            assert plan.makespan_s == expected
        else:
            assert expected == math.inf or plan.makespan_s <= expected


@pytest.mark.slow
def test_equals_enumeration_on_two_stages():
    """Chains of two stages, every budget at which something changes, up to seven runs."""
    chain = random_chain(np.random.default_rng(8), 2)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    for budget in (peak, peak - 1, peak - 5, exhaustive(chain, 0).min_feasible_bytes):
        plan = exhaustive(chain, budget)
        assert plan.makespan_s == by_enumeration(chain, budget, 7) or len(plan.schedule) > 7


@needs_instances
@pytest.mark.parametrize("name", ["unit_L4", "heavytail_L5_s1", "heavytail_L7_s3", "unit_L6"])
def test_known_optima(name):
    """Never above the known optimum, which keeps output and residual together; equal on units."""
    chain = load(INSTANCES / "chain" / f"{name}.json")
    truth = json.loads((INSTANCES / "chain" / "truth.json").read_text())[name]
    for row in truth["exhaustive"][:3]:
        makespan = exhaustive(chain, row["budget_bytes"]).makespan_s
        assert chain.store_all_s <= makespan <= row["any_s"]
        if name.startswith("unit"):
            assert makespan == row["any_s"]


@given(seed=st.integers(0, 10**9), num_stages=st.integers(1, 3))
@settings(max_examples=examples(60))
def test_least_budget_is_the_least(seed, num_stages):
    """At the least budget there is a schedule, one byte below there is none."""
    chain = random_chain(np.random.default_rng(seed), num_stages)
    refused = exhaustive(chain, 0)
    least = refused.min_feasible_bytes
    assert exhaustive(chain, least).feasible
    assert least == 0 or not exhaustive(chain, least - 1).feasible
    assert least <= Problem(chain).min_feasible_bytes


@pytest.mark.parametrize("budget", [5, 6, 8])
def test_ten_stages_take_few_states(budget):
    """Against the other exact search, which knows of chains; an oracle must get this far."""
    chain = unit_chain(10)
    plan = exhaustive(chain, budget, max_states=6_000)
    assert plan.makespan_s == chain_optimum(chain, budget).makespan_s
    assert plan.makespan_s > chain.store_all_s


def test_too_large_is_refused():
    """A long chain is an error that names the limit, not an endless run."""
    with pytest.raises(PlannerLimitError, match="100 states"):
        exhaustive(unit_chain(12), 6, max_states=100)
