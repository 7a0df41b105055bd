"""What a planner from outside gives is replayed before anybody sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import schedsim
from schedsim.errors import SchedsimError
from schedsim.plans.outside import checked_plan

CHAIN = schedsim.Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)
OTHER = replace(CHAIN, name="another", input_bytes=5)
GOOD = schedsim.plan(CHAIN, 26)


def checked(found, budget_bytes=26):
    """As of the planner ``"mine"``."""
    return checked_plan(found, CHAIN, budget_bytes, planner="mine", options={})


def test_a_schedule_becomes_a_plan():
    """With the numbers of its replay; nothing found is infeasible, with nothing proven."""
    plan = checked(GOOD.schedule)
    assert (plan.planner, plan.peak_bytes, plan.makespan_s) == ("mine", 26, 7.0)
    assert checked(None).status == "infeasible"
    assert checked(GOOD) is GOOD


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (42, "returned a int"),
        (schedsim.Schedule.store_all(CHAIN), "planned 32 bytes for a budget of 26"),
        (schedsim.plan(OTHER, 40), "a plan of another workload"),
        (replace(GOOD, budget_bytes=27), "the plan is for 27 bytes instead of 26"),
        (replace(GOOD, peak_bytes=20), "the plan says peak 20, the replay 26"),
        (replace(GOOD, lower_bound_s=7.5), "its lower bound 7.5 s is above its step time"),
        (replace(GOOD, lower_bound_s=6.0), "it says optimal, but its step time is above its bound"),
        (replace(GOOD, status="feasible"), "it says feasible, but its step time meets its bound"),
        (replace(GOOD, schedule=None), "the plan says optimal, but has no schedule"),
    ],
)
def test_what_the_replay_does_not_bear_out_is_refused(found, says):
    """With the planner's name."""
    with pytest.raises(SchedsimError, match="planner 'mine'") as caught:
        checked(found)
    assert says in str(caught.value)
