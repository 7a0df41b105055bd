"""The whole curve on true bytes: its ends, and each point against the oracle of tiny chains."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.exhaustive import exhaustive

import schedsim
from schedsim import Schedule, simulate


@pytest.mark.parametrize("seed", range(6))
def test_ends_and_steps(seed):
    """It ends with store-all; one byte below a point costs the time of the point before."""
    chain = random_chain(np.random.default_rng(seed), 5)
    points = schedsim.pareto(chain).points
    everything = simulate(chain, Schedule.store_all(chain))
    assert (points[-1].budget_bytes, points[-1].makespan_s) == (
        everything.peak_bytes,
        everything.makespan_s,
    )
    for before, point in pairwise(points):
        assert before.makespan_s > point.makespan_s
        assert frontier(chain, point.budget_bytes).makespan_s == point.makespan_s
        assert frontier(chain, point.budget_bytes - 1).makespan_s == before.makespan_s
        assert exhaustive(chain, point.budget_bytes).makespan_s <= point.makespan_s
    assert not frontier(chain, points[0].budget_bytes - 1).feasible
