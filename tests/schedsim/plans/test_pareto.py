"""The memory/time curve, whoever plans it."""

from __future__ import annotations

import pytest

import schedsim
from schedsim.errors import SchedsimError

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


def test_a_planner_is_asked_at_each_budget():
    """Shares and bytes alike; points fall in time, and none is faster than the exact curve."""
    exact = schedsim.pareto(CHAIN)
    asked = schedsim.pareto(CHAIN, "rotor", budgets=["70%", "100%", 60])
    assert [point.makespan_s for point in asked.points] == sorted(
        (point.makespan_s for point in asked.points), reverse=True
    )
    for point in asked.points:
        able = [p.makespan_s for p in exact.points if p.budget_bytes <= point.budget_bytes]
        assert point.makespan_s == min(able)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budgets": [60]}, "chooses its budgets"),
        ({"order": "free"}, "has no meaning for"),
        ({"planner": "rotor", "num_points": 3}, "has no meaning for rotor"),
        ({"planner": "cuts"}, "cuts"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, says):
    """They would be dropped in silence."""
    with pytest.raises(SchedsimError, match=says):
        schedsim.pareto(CHAIN, **options)
