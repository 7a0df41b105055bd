"""Ops that run once, whatever the planner."""

from __future__ import annotations

import pytest
from schedsim.algorithms import PLANNERS
from tiers import slow_where

import schedsim
from schedsim.api import try_plan
from schedsim.dataflow.run_once import matches, run_once
from schedsim.errors import SchedsimError, UnsupportedError


def tiny(once=()):
    """A chain of forwards whose cheapest plan within 5 bytes would run `b` again."""
    ops = [schedsim.Op("a", time_s=1, writes={"x": 2})]
    ops += [schedsim.Op("b", time_s=1, reads=("x",), writes={"y": 2})]
    ops += [schedsim.Op("c", time_s=4, reads=("y",), writes={"z": 2})]
    ops += [schedsim.Op("d", time_s=1, reads=("z",), writes={"w": 1})]
    ops += [schedsim.Op("grad.d", "backward", 1, reads=("w", "z"), writes={"gz": 1})]
    ops += [schedsim.Op("grad.c", "backward", 1, reads=("gz", "y"), writes={"gy": 1})]
    ops += [schedsim.Op("grad.a", "backward", 1, reads=("gy", "x"))]
    graph = schedsim.Graph("tiny", tuple(ops))
    return run_once(graph, once) if once else graph


GRAPH_PLANNERS = sorted(
    name
    for name, info in PLANNERS.items()
    if "graph" in info.kinds and not info.needs_link and name not in ("moccasin", "exhaustive")
)


@pytest.mark.parametrize(
    "name", slow_where(GRAPH_PLANNERS, lambda name: name in ("dtr", "kusumoto"))
)
def test_every_graph_planner_holds_to_it(name):
    """No schedule runs the op again, and none is quicker than brute force says."""
    kept = tiny(("b",))
    given = {"effort": 0.2} if name in ("auto", "cuts", "hierarchical", "local_search") else {}
    for budget in (6, 8):
        best = try_plan(kept, budget, "exhaustive")
        try:
            plan = try_plan(kept, budget, name, **given)
        except UnsupportedError as error:
            pytest.skip(error.message)
        if plan.schedule is None:
            continue
        assert best.schedule is not None
        assert [kept.op_names[run] for run in plan.schedule.bind(kept)].count("b") == 1
        assert plan.makespan_s >= best.makespan_s
        assert plan.lower_bound_s <= best.makespan_s + 1e-12


def test_it_changes_what_is_best():
    """Else the test before says nothing."""
    free = [try_plan(tiny(), budget, "exhaustive") for budget in range(4, 9)]
    kept = [try_plan(tiny(("b",)), budget, "exhaustive") for budget in range(4, 9)]
    assert [p.makespan_s for p in free] != [p.makespan_s for p in kept]


def test_patterns():
    """Names, modules, and both halves; what names nothing is refused."""
    assert matches("h.0.moe.router.mm#2", "h.0.moe.router")
    assert matches("grad.h.0.softmax", "h.*softmax*")
    assert not matches("h.10.mm", "h.1")
    with pytest.raises(SchedsimError, match="'routr' names no op"):
        run_once(tiny(), "routr")
