"""The calls of the package itself."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain, random_graph, unit_chain

import schedsim
from schedsim import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.errors import PlannerSkippedWarning


def test_infeasible_raises_with_the_least_budget():
    """The error carries the plan and the budget that would do."""
    chain = unit_chain(4)
    with pytest.raises(InfeasibleBudgetError) as caught:
        schedsim.plan(chain, 4)
    assert (caught.value.budget_bytes, caught.value.min_feasible_bytes) == (4, 5)
    assert caught.value.plan.status == "infeasible"
    assert schedsim.plan(chain, caught.value.min_feasible_bytes).feasible


def test_budgets_may_be_text():
    """A size with a unit means its bytes."""
    assert schedsim.plan(unit_chain(4), "1kB").budget_bytes == 1000


@pytest.mark.parametrize("budget", [-1, 1.5, True, None])
def test_budgets_that_are_no_sizes_are_refused(budget):
    """Only whole bytes and texts."""
    with pytest.raises(SchedsimError, match="budget"):
        schedsim.plan(unit_chain(4), budget)


def test_chain_planners_refuse_graphs():
    """Planners say what they take."""
    graph = random_graph(np.random.default_rng(0), 5)
    with pytest.raises(UnsupportedError, match="does not take a graph"):
        schedsim.plan(graph, 10**9, "rotor")


def test_pareto_is_the_frontier():
    """Each point is reached by a persistent plan at its budget, and by none a byte below."""
    chain = random_chain(np.random.default_rng(1), 9)
    curve = schedsim.pareto(chain)
    assert curve.exact
    assert curve.points[-1].overhead == 0
    for point in curve.points:
        assert schedsim.plan(chain, point.budget_bytes, "frontier").makespan_s == point.makespan_s
    sampled = schedsim.pareto(chain, "periodic")
    assert not sampled.exact
    for point in sampled.points:
        assert schedsim.plan(chain, point.budget_bytes, "periodic").makespan_s == point.makespan_s


def test_compare_gives_a_plan_per_planner():
    """Infeasible ones included, in the order asked."""
    plans = schedsim.compare(unit_chain(6), 6, ["store_all", "rotor"])
    assert [(plan.planner, plan.status) for plan in plans] == [
        ("store_all", "infeasible"),
        ("rotor", "optimal"),
    ]


def test_compare_leaves_out_what_is_too_large():
    """A warning names the planner and the reason; the others are there."""
    with pytest.warns(PlannerSkippedWarning, match="rotor left out"):
        plans = schedsim.compare(unit_chain(4001), 10**6, ["rotor", "store_all"])
    assert [plan.planner for plan in plans] == ["store_all"]


def test_results_print_well():
    """Status, peak and bound in words; a schedule that is long is cut."""
    chain = unit_chain(30)
    plan = schedsim.plan(chain, 20)
    assert "optimal" in str(plan)
    assert "lower bound" in str(plan)
    assert "least budget" in str(schedsim.api.try_plan(chain, 1))
    assert len(repr(plan.schedule)) < 200
    assert "break points" in str(schedsim.pareto(chain))
