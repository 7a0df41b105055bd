"""The bound by sweeps: below every schedule, and the optimum of equal stages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import chain_with_made_gradients
from schedsim.algorithms.auto import auto
from schedsim.algorithms.chains.chain_optimum import chain_optimum, search_optimum
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.chains.sweep_bound import MOST_STAGES, sweep_bound_s, sweep_work
from schedsim.algorithms.exhaustive import exhaustive

from schedsim import Chain, Schedule, simulate
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.workloads.synthetic import one_huge, uniform


def drawn_chain(rng: np.random.Generator, num: int) -> Chain:
    """A chain of small numbers; outputs rise and fall, bundles are small or large."""
    output = rng.integers(1, int(rng.integers(2, 7)), num)
    return Chain.from_arrays(
        "drawn",
        int(rng.integers(0, 3)),
        forward_s=rng.integers(0, 6, num).astype(float),
        backward_s=rng.integers(0, 3, num).astype(float),
        output_bytes=output,
        saved_bytes=output + rng.integers(0, int(rng.integers(1, 9)), num),
        forward_workspace_bytes=rng.integers(0, 3, num),
        backward_workspace_bytes=rng.integers(0, 4, num),
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_schedule_takes_less(seed):
    """At budgets from where nothing fits to store-all, against the exact search."""
    rng = np.random.default_rng(seed)
    chain = drawn_chain(rng, int(rng.integers(1, 9)))
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    for budget in np.linspace(peak // 4, peak, 9).astype(int).tolist():
        found = search_optimum(chain, budget)
        assert found.finished
        assert sweep_bound_s(chain, budget) <= found.bound_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_takes_less_where_backwards_may_run_twice(seed):
    """Gradients of parameters may be made twice; the oracle runs any op again."""
    chain = chain_with_made_gradients(seed)
    least = exhaustive(chain, 0).min_feasible_bytes
    for budget in range(least, least + 12, 3):
        assert sweep_bound_s(chain, budget) <= exhaustive(chain, budget).makespan_s * (1 + 1e-12)


@pytest.mark.parametrize("budget_bytes", [12_000_000, 13_200_000, 15_000_000, 18_000_000])
@pytest.mark.parametrize("num_stages", [17, 60])
def test_of_equal_stages_whose_bundles_fit_nowhere_it_is_the_optimum(num_stages, budget_bytes):
    chain = uniform(num_stages)
    best = frontier(chain, budget_bytes)
    assert sweep_bound_s(chain, budget_bytes) == pytest.approx(best.makespan_s, rel=1e-12)


def test_a_stretch_behind_a_small_output_does_not_know_of_it():
    """Without the second stretch, every output would be charged the one byte of the first."""
    outputs = [1] + [10] * 11
    chain = Chain.from_arrays(
        "small first",
        1,
        forward_s=[1] * 12,
        backward_s=[1] * 12,
        output_bytes=outputs,
        saved_bytes=[80] * 12,
    )
    alike = Chain.from_arrays(
        "behind",
        1,
        forward_s=[1] * 11,
        backward_s=[1] * 11,
        output_bytes=outputs[1:],
        saved_bytes=[80] * 11,
    )
    budget = 121
    extra_s = sweep_bound_s(alike, budget) - alike.store_all_s
    assert extra_s > 10
    assert sweep_bound_s(chain, budget) - chain.store_all_s >= extra_s


def test_auto_proves_tight_chains_of_many_stages():
    """On chains and on their graphs, and on more stages than a state of a search has bits for."""
    plan = auto(uniform(60).graph, 18_000_000, effort=1.0)
    assert (plan.status, plan.bound_scope) == ("optimal", ANY_SCHEDULE)
    assert plan.overhead == pytest.approx(0.75)
    many = auto(uniform(100).graph, 18_000_000, effort=1.0)
    assert (many.status, many.overhead) == ("optimal", pytest.approx(0.85))
    beside = {one.planner: one for one in auto(uniform(100), 18_000_000).candidates}
    assert beside["chain_optimum"].bound_scope == ANY_SCHEDULE
    assert beside["chain_optimum"].lower_bound_s == pytest.approx(many.makespan_s, rel=1e-12)


def test_what_fits_nowhere_is_proven():
    chain = one_huge(9, seed=1)
    assert sweep_bound_s(chain, 10**6) == math.inf
    assert chain_optimum(chain, 10**6).proven_infeasible
    assert auto(uniform(100), 10**6, effort=0.1, order="fixed").proven_infeasible


def test_beyond_the_most_stages_nothing_is_computed():
    chain = uniform(MOST_STAGES + 1)
    assert sweep_bound_s(chain, 20_000_000) == chain.store_all_s
    assert sweep_work(chain.num_stages) == 0 < sweep_work(MOST_STAGES) < 10
