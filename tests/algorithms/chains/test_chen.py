"""Chen et al. 2016: sqrt(n) segments, and the greedy choice of segments by size."""

from __future__ import annotations

import numpy as np
from chains import random_chain
from schedsim.algorithms.chains.chen import chen_greedy


def test_searching_all_thresholds_is_never_worse_than_the_papers_six():
    """On random chains, at the least budget of the paper's search, all thresholds do as well."""
    for seed in range(30):
        chain = random_chain(np.random.default_rng(seed), 12)
        budget = chen_greedy(chain, 0, search="paper").min_feasible_bytes
        paper = chen_greedy(chain, budget, search="paper")
        assert chen_greedy(chain, budget).makespan_s <= paper.makespan_s
