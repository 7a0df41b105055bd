"""The baseline that keeps stage inputs alone."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.chains.bisection import bisection
from schedsim.algorithms.chains.chen import chen_greedy, chen_sqrt
from schedsim.algorithms.chains.periodic import periodic
from schedsim.algorithms.chains.recompute_all import recompute_all
from schedsim.algorithms.store_all import store_all


@pytest.mark.parametrize(
    "planner", [store_all, recompute_all, periodic, chen_sqrt, chen_greedy, bisection]
)
def test_infeasible_names_a_budget_that_works(planner):
    """At the least budget named there is a plan, one byte below there is none."""
    for seed in range(20):
        chain = random_chain(np.random.default_rng(seed), 9)
        refused = planner(chain, 0)
        assert (refused.status, refused.schedule) == ("infeasible", None)
        assert planner(chain, refused.min_feasible_bytes).feasible
        assert not planner(chain, refused.min_feasible_bytes - 1).feasible
