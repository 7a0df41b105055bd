"""Rotor: the optimal persistent schedule of a heterogeneous chain, over memory slots."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.chains.rotor import DEFAULT_SLOTS, rotor

from schedsim import Chain
from schedsim.workloads.synthetic import heavy_tailed


def test_rotor_at_the_least_budget_with_few_slots():
    """Rounding up may miss the least feasible budget; the plan is feasible there all the same."""
    rng = np.random.default_rng(11)
    output = rng.integers(10**6, 10**7, 30)
    chain = Chain.from_arrays(
        "tight",
        10**6 + 3,
        forward_s=rng.random(30),
        backward_s=rng.random(30),
        output_bytes=output,
        saved_bytes=output + rng.integers(0, 10**7, 30),
    )
    budget = Problem(chain).min_feasible_bytes
    plan = rotor(chain, budget, num_slots=10, gap=10.0)
    assert plan.feasible
    assert plan.peak_bytes <= budget


def test_a_time_limit_begins_with_the_slots_that_it_has_time_for():
    """500 slots of a thousand stages take half a minute, and a first solution is not stopped."""
    chain = heavy_tailed(150)
    budget = int(1.2 * Problem(chain).min_feasible_bytes)
    hurried = rotor(chain, budget, time_limit_s=1e-3, num_slots=5000)
    assert hurried.feasible
    assert hurried.options["num_slots"] < 500
    assert rotor(chain, budget, gap=1.0).options["num_slots"] == DEFAULT_SLOTS
