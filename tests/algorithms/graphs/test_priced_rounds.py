"""The search of large graphs within little memory, by walkers that give bytes a price."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs import _priced_rounds
from schedsim.algorithms.graphs._priced_rounds import PricedRounds
from schedsim.algorithms.graphs.local_search import local_search
from training_graphs import random_training_graph

from schedsim import Graph, Plan, Schedule, simulate
from schedsim.workloads.synthetic_graphs import layered, wide


def planned(graph: Graph, share: float, **options: float) -> Plan:
    budget = int(share * simulate(graph, Schedule.store_all(graph)).peak_bytes)
    plan = local_search(graph, budget, **options)
    assert plan.schedule is not None
    found = simulate(graph, plan.schedule)
    assert found.peak_bytes <= budget
    assert found.makespan_s == pytest.approx(plan.makespan_s)
    assert plan.lower_bound_s <= plan.makespan_s
    return plan


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the rounds were asked for, and what they did."""
    found: list[str] = []
    run, down = PricedRounds.run, PricedRounds.come_down

    def noting(self: PricedRounds) -> bool:
        found.append("run")
        done = run(self)
        found.append("done" if done else "left to others")
        return done

    def noting_down(self: PricedRounds) -> None:
        found.append("down from the bound")
        down(self)

    monkeypatch.setattr(PricedRounds, "run", noting)
    monkeypatch.setattr(PricedRounds, "come_down", noting_down)
    return found


@pytest.mark.slow
def test_a_plan_depends_on_the_effort_alone(asked):
    """Not on the threads, nor on how far the bound has come by then."""
    graph = layered(600, 1)
    plans = [planned(graph, 0.45, effort=2.0, num_threads=threads) for threads in (1, 2)]
    assert asked[:2] == ["run", "done"]
    assert plans[0].makespan_s == plans[1].makespan_s
    assert plans[0].lower_bound_s == plans[1].lower_bound_s


@pytest.mark.slow
def test_where_the_order_is_free_walkers_begin_on_the_order_of_the_least_peak(asked, monkeypatch):
    """They come to faster schedules there than in the graph's own order."""
    monkeypatch.setattr(_priced_rounds, "_DEAR", 1.0)  # whatever the first annealing comes to
    graph = layered(600, 1)
    fixed = planned(graph, 0.55, effort=5.0)
    asked.clear()
    free = [planned(graph, 0.55, effort=5.0, order="free", num_threads=n) for n in (1, 2)]
    assert asked == ["run", "done"] * 2
    assert free[0].makespan_s == free[1].makespan_s < fixed.makespan_s


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"effort": 8.0}, {"time_limit_s": 10.0}])
def test_where_nothing_fits_at_first_walkers_come_down_from_the_bound(asked, limit):
    graph = wide(1000, 0)
    planned(graph, 0.6, **limit)
    assert asked == ["run", "down from the bound", "done"]


def test_little_excess_and_cheap_plans_are_left_to_other_walkers(asked):
    """A peak of less than 1.5 times the limit, or a first plan of little overhead."""
    graph = layered(500, 1)
    planned(graph, 0.8, effort=0.3)
    assert asked == ["run", "left to others"]
    asked.clear()
    planned(random_training_graph(np.random.default_rng(5), 40), 0.8, effort=0.1)
    assert "done" not in asked
