"""The nearest of what a target can say: the fastest within the budget, or the leanest."""

from __future__ import annotations

from itertools import combinations

from small_exports import CHAIN

import schedsim
from schedsim import simulate
from schedsim.export.choice import nearest
from schedsim.export.segments import as_choice, singles


def test_it_is_the_best_of_all_by_simulation():
    """Over all sets of layers, at several budgets; of too small ones the least peak."""
    layers = range(1, 5)
    choices = [
        as_choice(CHAIN, singles(chosen)) for n in range(5) for chosen in combinations(layers, n)
    ]
    seen = [simulate(CHAIN, choice.schedule) for choice in choices]
    for point in [*schedsim.pareto(CHAIN).points, None]:
        budget = point.budget_bytes if point else 1
        plan = schedsim.plan(CHAIN, "100%", "store_all")
        object.__setattr__(plan, "budget_bytes", budget)
        _, found = nearest(CHAIN, plan, choices)
        fitting = [one for one in seen if one.peak_bytes <= budget]
        if fitting:
            assert found.makespan_s == min(one.makespan_s for one in fitting)
            assert found.peak_bytes <= budget
        else:
            assert found.peak_bytes == min(one.peak_bytes for one in seen)
