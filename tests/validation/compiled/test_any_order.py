"""Orders of first runs that are searched for compiled groups."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.compiled.any_order import first_that_fits, is_better, orders

from schedsim import Graph, Op, Schedule
from schedsim.plans.plan import make_plan

FREE, TRACE = {"order": "free"}, {}


@pytest.mark.parametrize(
    ("planner", "options", "tried"),
    [
        ("auto", ["effort"], [FREE, TRACE]),
        ("local_search", [], [FREE, TRACE]),
        ("auto", ["time_limit_s"], [FREE]),
        ("auto", ["order"], [TRACE]),
        ("auto", ["keep"], [TRACE]),
        ("cuts", [], [TRACE]),
    ],
)
def test_the_order_of_the_trace_is_searched_last_and_alone_where_another_makes_no_sense(
    planner, options, tried
):
    assert orders(planner, options) == tried


def test_the_first_order_that_fits_is_taken_and_else_the_refusal_that_names_least():
    graph = Graph("one", (Op("x", writes={"x": 1}, time_s=1.0),), results=("x",))
    fits = make_plan(graph, 10, Schedule.store_all(graph), planner="auto")
    refused = make_plan(graph, 10, None, planner="auto")
    asked = []

    def plan_in(order):
        asked.append(order)
        return refused if order == FREE else fits

    assert first_that_fits(plan_in, [FREE, TRACE]) is fits
    assert asked == [FREE, TRACE]
    asked.clear()
    assert first_that_fits(plan_in, [TRACE, FREE]) is fits
    assert asked == [TRACE]
    assert first_that_fits(plan_in, [FREE]) is refused
    assert is_better(fits, refused)
    assert not is_better(refused, fits)
