"""Equal segments, as many as the simulated peak asks for."""

from __future__ import annotations

import numpy as np
from chains import random_chain
from schedsim.algorithms.chains.periodic import periodic


def test_periodic_finds_the_best_count():
    """Every count is simulated: no count that fits is faster than the one chosen."""
    chain = random_chain(np.random.default_rng(4), 15)
    for budget in range(200, 500, 20):
        plan = periodic(chain, budget)
        every = [periodic(chain, budget, num_segments=k) for k in range(1, 16)]
        fastest = min((p.makespan_s for p in every if p.feasible), default=None)
        assert plan.makespan_s == fastest
