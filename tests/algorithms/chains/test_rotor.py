"""Rotor: the optimal persistent schedule of a heterogeneous chain, over memory slots."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.chains.rotor import rotor

from schedsim import Chain


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
