"""Plans: replayed before anybody sees them, with a status that follows from what is proven."""

from __future__ import annotations

from dataclasses import replace

import pytest
from four_stages import CHAIN

import schedsim
from schedsim import Graph, Op, SchedsimError, Schedule
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import (
    OPTIMALITY_TOLERANCE,
    Plan,
    best_of,
    installed_versions,
    make_plan,
    timed,
    with_candidates,
)
from schedsim.plans.scope import ANY_SCHEDULE, PERSISTENT

ALL = Schedule.store_all(CHAIN)
AGAIN = Schedule.from_names([*CHAIN.op_names[:6], "F1", "F2", "B2", "B1", "F0", "B0"])


def test_a_planner_that_breaks_its_budget_is_found_out():
    """The replay says 92 bytes: a plan for 91 is never made, one for 92 is."""
    assert make_plan(CHAIN, 92, ALL, planner="mine").peak_bytes == 92
    with pytest.raises(AssertionError, match="mine planned 92 bytes for a budget of 91"):
        make_plan(CHAIN, 91, ALL, planner="mine")


@pytest.mark.parametrize(
    ("bound_s", "status", "scope"),
    [
        (0.0, "feasible", ANY_SCHEDULE),
        (12.0, "feasible", ANY_SCHEDULE),  # no better than the time that every schedule takes
        (14.0, "feasible", PERSISTENT),
        (15.0, "optimal", PERSISTENT),
        (15.0 * (1 - OPTIMALITY_TOLERANCE / 2), "optimal", PERSISTENT),
        (15.0 * (1 - OPTIMALITY_TOLERANCE * 3), "feasible", PERSISTENT),
        (16.0, "optimal", PERSISTENT),  # sums of floats: never above the time of the schedule
    ],
)
def test_the_status_follows_from_the_bound(bound_s, status, scope):
    """The schedule takes 12 s and 3 s again; the word optimal needs a bound that meets them."""
    plan = make_plan(CHAIN, 92, AGAIN, planner="p", lower_bound_s=bound_s, bound_scope=PERSISTENT)
    assert (plan.makespan_s, plan.status, plan.bound_scope) == (15.0, status, scope)
    assert 12.0 <= plan.lower_bound_s <= 15.0
    assert plan.gap == pytest.approx(15.0 / max(12.0, min(bound_s, 15.0)) - 1, abs=1e-8)
    assert plan.gap >= 0
    assert plan.overhead == pytest.approx(3 / 12)


def test_store_all_within_its_peak_needs_no_proof():
    """It takes the least time that any schedule takes."""
    plan = make_plan(CHAIN, 92, ALL, planner="p")
    assert (plan.status, plan.gap, plan.overhead) == ("optimal", 0.0, 0.0)
    assert plan.bound_scope == ANY_SCHEDULE


def test_a_step_that_takes_no_time():
    """Nothing is divided by zero."""
    graph = Graph("g", (Op("f", writes={"x": 1}), Op("b", "backward", reads=("x",))))
    plan = make_plan(graph, 1, Schedule.store_all(graph), planner="p")
    assert (plan.makespan_s, plan.overhead, plan.gap, plan.status) == (0.0, 0.0, 0.0, "optimal")


def test_no_schedule_is_infeasible_and_says_what_is_known():
    """Numbers of a schedule are absent; the bound and the least budget stay."""
    plan = make_plan(
        CHAIN, 20, None, planner="p", lower_bound_s=13.0, least=LeastBudget(52, "B3", 52)
    )
    assert (plan.status, plan.feasible) == ("infeasible", False)
    assert {plan.peak_bytes, plan.makespan_s, plan.overhead, plan.gap} == {None}
    assert (plan.min_feasible_bytes, plan.binding_op, plan.lower_bound_s) == (52, "B3", 13.0)
    assert plan.proven_infeasible
    assert not replace(plan, budget_bytes=52).proven_infeasible
    assert not make_plan(CHAIN, 20, None, planner="p").proven_infeasible
    with pytest.raises(SchedsimError, match="no schedule") as caught:
        plan.simulate(CHAIN)
    assert "larger budget" in caught.value.hint
    assert str(plan).splitlines() == [
        "four, budget 20 B: infeasible (p)",
        "  the proven least budget is 52 B over any schedule, set by B3",
    ]


def test_a_least_budget_above_the_peak_is_none():
    """The schedule itself fits in less."""
    plan = make_plan(CHAIN, 1000, ALL, planner="p", least=LeastBudget(500, "B1"))
    assert plan.min_feasible_bytes != 500


def test_of_a_family_the_fastest_that_fits_is_taken():
    """If several are equally fast, the one of least memory; the least peak is the least found."""
    family = [({"n": 0}, ALL), ({"n": 1}, AGAIN)]
    peak = schedsim.simulate(CHAIN, AGAIN).peak_bytes
    assert best_of(CHAIN, 92, family, planner="p").options == {"n": 0}
    assert best_of(CHAIN, 91, family, planner="p").options == {"n": 1}
    none = best_of(CHAIN, peak - 1, family, planner="p", seed=3)
    assert (none.status, none.min_feasible_bytes, none.seed) == ("infeasible", peak, 3)
    assert not none.proven_infeasible  # others may need less
    assert best_of(CHAIN, 92, [], planner="p").min_feasible_bytes is None
    longer = Schedule.from_names(["F0", *CHAIN.op_names])
    ties = [({"n": 0}, longer), ({"n": 1}, Schedule.from_names(["F0", "F1", *CHAIN.op_names[1:]]))]
    sizes = [schedsim.simulate(CHAIN, schedule).peak_bytes for _, schedule in ties]
    assert best_of(CHAIN, 200, ties, planner="p").options == {"n": sizes.index(min(sizes))}


def test_rows_say_what_their_plans_say():
    """In the order tried."""
    plan = make_plan(CHAIN, 92, ALL, planner="one")
    none = make_plan(CHAIN, 20, None, planner="two")
    rows = with_candidates(plan, [none, plan]).candidates
    assert [row.planner for row in rows] == ["two", "one"]
    assert rows[1].to_dict() == {
        "planner": "one",
        "status": "optimal",
        "peak_bytes": 92,
        "makespan_s": 12.0,
        "overhead": 0.0,
        "lower_bound_s": 12.0,
        "bound_scope": "any schedule",
        "min_feasible_bytes": plan.min_feasible_bytes,
        "planning_s": 0.0,
    }


def test_planning_is_timed_without_what_warms_up():
    """The warm-up comes first each time; the rest of the answer is left alone."""
    calls = []

    @timed(lambda: calls.append("warm"))
    def planner(budget: int, *, factor: int) -> Plan:
        calls.append("plan")
        return make_plan(CHAIN, budget * factor, ALL, planner="p")

    plan = planner(46, factor=2)
    assert calls == ["warm", "plan"]
    assert plan.planning_s > 0
    assert replace(plan, planning_s=0.0) == make_plan(CHAIN, 92, ALL, planner="p")
    assert planner.__name__ == "planner"


def test_versions_are_those_of_what_ran():
    """Nobody who changes the answer changes the next one."""
    found = installed_versions()
    assert set(found) == {"python", "schedsim", "numpy"}
    found["numpy"] = "0"
    assert installed_versions()["numpy"] != "0"
