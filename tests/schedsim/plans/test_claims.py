"""Whether a plan is of a workload, and says what its replay gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

import schedsim
from schedsim.errors import InvalidScheduleError
from schedsim.plans.claims import check_belongs, check_claims, mismatches


def chain(saved=10):
    """Two equal stages."""
    return schedsim.Chain.from_arrays(
        "two",
        4,
        forward_s=[1, 1],
        backward_s=[2, 2],
        output_bytes=[4, 4],
        saved_bytes=[saved, saved],
    )


def test_a_plan_of_another_workload_is_refused():
    """By the content: the names of its ops would fit."""
    plan = schedsim.plan(chain(), 26)
    check_belongs(plan, chain())
    with pytest.raises(InvalidScheduleError, match="for another workload"):
        check_belongs(plan, chain(saved=11))


def test_a_plan_that_was_edited_is_refused():
    """To the byte; the time within rounding, and not at all where times are measured."""
    plan = schedsim.plan(chain(), 26)
    simulation = plan.simulate(chain())
    check_claims(plan, simulation)
    check_claims(replace(plan, makespan_s=plan.makespan_s * (1 + 1e-12)), simulation)
    slower = replace(plan, makespan_s=plan.makespan_s + 1)
    assert mismatches(slower, simulation) == ["the plan says step time 8.0 s, the replay 7.0 s"]
    check_claims(slower, simulation, times=False)
    with pytest.raises(InvalidScheduleError, match="the plan says peak 25, the replay 26"):
        check_claims(replace(plan, peak_bytes=25), simulation, times=False)


def test_a_plan_whose_budget_was_edited_is_refused():
    """A schedule above the budget is no plan for it, whatever else is true of it."""
    plan = schedsim.plan(chain(), 26)
    with pytest.raises(
        InvalidScheduleError, match="a budget of 25 B, the peak of the replay is 26"
    ):
        check_claims(replace(plan, budget_bytes=25), plan.simulate(chain()))
