"""Schedules beyond the persistent ones: never slower with more memory, and true to the optimum."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains import beyond_persistent as module
from schedsim.algorithms.chains.beyond_persistent import (
    faster_schedule,
    is_exact,
    rungs_up_to,
    with_bound,
)
from schedsim.algorithms.chains.frontier import exact_frontier
from schedsim.algorithms.exhaustive import exhaustive

from schedsim import Chain, Schedule, simulate
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.workloads.synthetic import alternating, uniform

UNIT = Chain.from_arrays(
    "four", 1, forward_s=[1] * 4, backward_s=[1] * 4, output_bytes=[1] * 4, saved_bytes=[1] * 4
)


def makespans(chain: Chain, budgets: list[int]) -> list[float]:
    plans = [auto(chain, budget) for budget in budgets]
    for plan in plans:
        assert simulate(chain, plan.schedule).peak_bytes <= plan.budget_bytes
        for row in plan.candidates:
            if row.bound_scope == ANY_SCHEDULE:
                assert row.lower_bound_s <= plan.makespan_s * (1 + 1e-9)
    return [plan.makespan_s for plan in plans]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_more_memory_never_costs_time(seed, exact, monkeypatch):
    """Searches too short to end, too: within few states some succeed and some do not."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, 7)
    if not exact:
        monkeypatch.setattr(module, "MOST_EXACT", 0)
        monkeypatch.setattr(module, "_LOOK", [1e-4, 5e-4, 2e-3][seed % 3])
        monkeypatch.setattr(module, "_LOOK_AT_RUNG", [1e-4, 1e-3, 4e-3][seed % 3])
    least = int(exact_frontier(chain).budget_bytes[0])
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    budgets = np.unique(np.linspace(least, peak, 12).astype(int)).tolist()
    times = makespans(chain, budgets)
    assert all(b <= a * (1 + 2e-9) for a, b in pairwise(times))


def test_where_a_search_at_each_budget_alone_would_rise():
    """A search of the same length succeeds at one of these budgets, and not at the next."""
    chain = alternating(16)
    least = int(exact_frontier(chain).budget_bytes[0])
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    budgets = [least + (peak - least) * k // 40 for k in range(4, 28, 2)]
    alone = [module.look(chain, budget).schedule is not None for budget in budgets]
    assert (True, False) in pairwise(alone)
    times = makespans(chain, budgets)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("seed", range(6))
def test_few_stages_get_the_optimum(seed):
    """And the bound is met; exhaustive search is the oracle."""
    chain = random_chain(np.random.default_rng(seed), 4)
    for budget in exact_frontier(chain).budget_bytes.tolist():
        best = exhaustive(chain, budget)
        if is_exact(chain):
            assert auto(chain, budget).makespan_s == pytest.approx(best.makespan_s)
        plan = with_bound(chain, budget, best.schedule)
        assert plan.lower_bound_s <= best.makespan_s
        assert (plan.status == "optimal") >= is_exact(chain)


@pytest.mark.slow
def test_the_ladder_depends_on_the_chain_alone():
    """Its rungs up to a budget are those of a larger budget up to there."""
    chain = uniform(20)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = int(exact_frontier(chain).budget_bytes[0])
    whole = list(rungs_up_to(chain, least, peak))
    rungs = [rung for rung, _ in whole]
    assert rungs == sorted(rungs, reverse=True)
    assert (rungs[0], rungs[-1]) == (peak, least)
    near = (least - 1, least, least + 1, rungs[3] - 1, rungs[3], rungs[1] + 1)
    for budget in (*near, (least + peak) // 2):
        assert list(rungs_up_to(chain, least, budget)) == [it for it in whole if it[0] <= budget]


@pytest.mark.slow
@pytest.mark.parametrize("chain", [uniform(20), alternating(16)], ids=lambda chain: chain.name)
def test_what_is_between_two_rungs_has_nearly_the_bound_of_the_upper_one(chain):
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = int(exact_frontier(chain).budget_bytes[0])
    whole = list(rungs_up_to(chain, least, peak))
    assert 10 < len(whole) < 150
    for (upper, bound_s), (lower, _) in pairwise(whole):
        for k in range(1, 20):
            between = module._bound_s(chain, upper - k * (upper - lower) // 20)
            assert between <= bound_s + 0.02 * chain.store_all_s


def test_nothing_faster_than_the_optimum_is_found():
    """11 is the least within 5 bytes; a slower schedule is beaten, the optimum is not."""
    assert simulate(UNIT, faster_schedule(UNIT, 5, 13.0, 5)).makespan_s == 11
    assert simulate(UNIT, faster_schedule(UNIT, 5, math.inf, 5)).makespan_s == 11
    assert faster_schedule(UNIT, 5, 11.0, 5) is None


@pytest.mark.parametrize("exact", [True, False])
def test_without_times_nothing_is_faster(exact, monkeypatch):
    """As of blocks that were measured in bytes alone; the ladder divided by the time of a step."""
    monkeypatch.setattr(module, "is_exact", lambda chain: exact)
    chain = Chain.from_arrays(
        "six", 1, forward_s=[0] * 6, backward_s=[0] * 6, output_bytes=[1] * 6, saved_bytes=[3] * 6
    )
    least = auto(chain, 1).min_feasible_bytes
    for budget in (least, least + 3):
        assert faster_schedule(chain, budget, 0.0, least) is None
        assert auto(chain, budget).feasible
