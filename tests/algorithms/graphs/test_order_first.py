"""A free order where nothing fits soon: one order first, and then any."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs import _priced_rounds
from schedsim.algorithms.graphs._order_first import OrderFirst
from schedsim.algorithms.graphs.local_search import local_search

from schedsim import Schedule, simulate
from schedsim.plans.progress import searching
from schedsim.workloads.synthetic_graphs import layered

GRAPH = layered(600, 1)
STORE_ALL_BYTES = simulate(GRAPH, Schedule.store_all(GRAPH)).peak_bytes


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[OrderFirst]:
    """The parts of the searches; each begins without a first annealing that finds anything."""
    found: list[OrderFirst] = []
    run = OrderFirst.run

    def noting(self: OrderFirst) -> bool:
        found.append(self)
        return run(self)

    monkeypatch.setattr(OrderFirst, "run", noting)
    monkeypatch.setattr(_priced_rounds, "_FIRST_PER_OP", 1e-9)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"effort": 4.0}, {"time_limit_s": 4.0}])
def test_the_plan_goes_on_from_the_one_in_the_leanest_order(parts, limit):
    plan = local_search(GRAPH, int(0.45 * STORE_ALL_BYTES), order="free", **limit)
    (part,) = parts
    assert part.inner is not None
    in_order = part.inner.best()
    if in_order is None and "time_limit_s" in limit:
        return  # a busy machine
    assert in_order is not None
    assert plan.schedule is not None
    found = simulate(GRAPH, plan.schedule)
    assert found.peak_bytes <= plan.budget_bytes
    assert found.makespan_s <= simulate(GRAPH, in_order).makespan_s
    assert plan.lower_bound_s <= found.makespan_s


@pytest.mark.slow
def test_the_plan_depends_on_the_effort_alone(parts):
    budget = int(0.45 * STORE_ALL_BYTES)
    plans = [
        local_search(GRAPH, budget, order="free", effort=2.0, num_threads=threads)
        for threads in (1, 2)
    ]
    assert len(parts) == 2
    assert plans[0].schedule == plans[1].schedule
    assert plans[0].lower_bound_s == plans[1].lower_bound_s


@pytest.mark.slow
def test_what_is_proven_in_one_order_is_not_reported_as_a_bound_in_any(parts):
    """The search in one order proves more than holds where ops may change their places."""
    with searching("a step") as progress:
        plan = local_search(GRAPH, int(0.45 * STORE_ALL_BYTES), order="free", effort=2.0)
    inner = parts[0].inner
    assert inner is not None
    assert inner.bound.bound_s > plan.lower_bound_s
    assert progress.bound_s <= plan.lower_bound_s


@pytest.mark.slow
def test_where_nothing_fits_in_one_order_the_other_walkers_have_the_rest(parts):
    plan = local_search(GRAPH, int(0.2 * STORE_ALL_BYTES), order="free", effort=0.5)
    (part,) = parts
    assert part.inner is not None
    assert part.inner.best() is None
    assert part.inner.lean.found is None  # only the search in any order names a least budget
    assert plan.schedule is None
    assert plan.least is not None
