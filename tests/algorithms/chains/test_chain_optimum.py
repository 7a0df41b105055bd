"""The optimum over all schedules of a chain: against the oracle, and what it says beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import chain_with_made_gradients, random_chain, unit_chain
from schedsim.algorithms.chains.chain_optimum import (
    chain_optimum,
    search_optimum,
)
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.exhaustive import exhaustive

from schedsim import PlannerLimitError, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.workloads.synthetic import heavy_tailed, uniform


@pytest.mark.parametrize("seed", range(12))
def test_is_the_oracles_optimum_at_every_budget(seed):
    """Least budget, and times between it and store-all, of chains with workspaces of all kinds."""
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 6)))
    least = exhaustive(chain, 0).least
    assert chain_optimum(chain, 0).least.found_bytes == least.found_bytes
    assert chain_optimum(chain, 0).least.proven
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    for budget in np.linspace(least.found_bytes, peak, 3).astype(int).tolist():
        plan = chain_optimum(chain, budget)
        assert (plan.status, plan.bound_scope) == ("optimal", ANY_SCHEDULE)
        assert plan.makespan_s == pytest.approx(exhaustive(chain, budget).makespan_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_where_a_second_backward_may_be_of_use(seed):
    """Gradients of parameters, which may be made twice; residuals that take less when kept."""
    chain = chain_with_made_gradients(seed)
    least = exhaustive(chain, 0).min_feasible_bytes
    assert chain_optimum(chain, 0).least.floor_bytes <= least
    for budget in range(least, least + 12, 3):
        best, plan = exhaustive(chain, budget), chain_optimum(chain, budget)
        assert plan.lower_bound_s <= best.makespan_s * (1 + 1e-9)
        if plan.status == "optimal":
            assert plan.makespan_s == pytest.approx(best.makespan_s)


def test_thirty_stages_beyond_persistent():
    """Proven in an instant; the best persistent schedule takes 13 points more."""
    chain = heavy_tailed(30, 1)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = frontier(chain, 0).min_feasible_bytes
    budget = int(least + 0.02 * (peak - least))
    plan = chain_optimum(chain, budget)
    assert plan.status == "optimal"
    assert plan.overhead == pytest.approx(0.031944, abs=1e-5)
    assert frontier(chain, budget).overhead == pytest.approx(0.150237, abs=1e-5)


def test_sixty_equal_stages_within_little_memory_need_what_persistent_ones_take():
    """Where many cuts together prove a quarter of it."""
    plan = chain_optimum(uniform(60), 13_200_000)
    assert (plan.status, plan.overhead) == ("optimal", pytest.approx(19 / 9))


@pytest.mark.slow
def test_what_effort_is_too_small_for_has_a_bound():
    """The persistent schedule, and what was proven; never `optimal`."""
    chain, budget = uniform(24), 83_000_000
    plan = chain_optimum(chain, budget, effort=0.2)
    assert (plan.status, plan.search.ended_by) == ("feasible", "work")
    assert plan.bound_scope == ANY_SCHEDULE
    assert chain.store_all_s < plan.lower_bound_s < plan.makespan_s
    again = chain_optimum(chain, budget, effort=0.2)
    assert (again.lower_bound_s, again.schedule) == (plan.lower_bound_s, plan.schedule)
    more = search_optimum(chain, budget, below_s=plan.makespan_s, effort=Effort(1.0))
    assert more.bound_s >= plan.lower_bound_s


def test_memory_for_states_ends_it():
    found = search_optimum(uniform(24), 83_000_000, max_bytes=1_000_000)
    assert not found.finished
    assert found.num_states <= 1_000_000 / 90


def test_refuses_what_its_states_have_no_room_for():
    with pytest.raises(PlannerLimitError, match="63 stages are more than the 62"):
        chain_optimum(uniform(63), 10**9)


def test_whether_anything_fits_is_known_below_the_persistent_least():
    """Five bytes hold four unit stages, four do not, by any schedule."""
    chain = unit_chain(4)
    assert search_optimum(chain, 5, timeless=True).schedule is not None
    nothing = search_optimum(chain, 4, timeless=True)
    assert (nothing.schedule, nothing.finished, nothing.bound_s) == (None, True, math.inf)
