"""One walker through many budgets: what fits, where it goes on from, and that it repeats itself."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs._budget_sweep import BudgetSweep
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from training_graphs import unit_training_chain

from schedsim import Graph, Op, Schedule, simulate
from schedsim.plans.effort import Effort


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


@pytest.mark.parametrize("free", [False, True])
def test_every_schedule_is_within_its_budget(free):
    """Downwards times rise, and upwards they fall again, to that of store-all."""
    graph = unit_training_chain(12)
    peak = peak_of(graph)
    sweep = BudgetSweep(graph, free=free, seed=1)
    budgets = [peak, peak - 2, peak - 4, peak - 6]
    down = [sweep.at(budget, Effort(0.02)) for budget in budgets]
    up = [sweep.at(budget, Effort(0.02)) for budget in reversed(budgets)]
    for budget, one in zip([*budgets, *reversed(budgets)], [*down, *up], strict=True):
        assert one.peak_bytes <= budget
    times = [one.makespan_s for one in down]
    assert times == sorted(times)
    assert times[0] == up[-1].makespan_s == graph.store_all_s < times[-1]


def test_a_budget_at_which_nothing_fits():
    """It says so, and goes on at a larger one."""
    graph = unit_training_chain(8)
    sweep = BudgetSweep(graph, free=False, seed=0)
    assert sweep.at(least_memory_bytes(graph)[0] - 1, Effort(0.01)) is None
    assert sweep.at(peak_of(graph) - 1, Effort(0.02)) is not None


def test_without_effort_it_has_what_it_goes_on_from():
    """A schedule that fits already is an answer."""
    graph = unit_training_chain(8)
    sweep = BudgetSweep(graph, free=False, seed=0)
    found = sweep.at(peak_of(graph) - 3, Effort(0.05))
    again = BudgetSweep(graph, free=False, seed=0)
    assert again.at(peak_of(graph) - 3, Effort(0.0)) is None
    again.go_on_from(found.schedule)
    assert again.at(peak_of(graph) - 3, Effort(0.0)).makespan_s == found.makespan_s


def test_ops_of_no_time():
    """No temperature follows from their times."""
    ops = (Op("a", writes={"x": 4}), Op("b", writes={"y": 4}), Op("c", reads=("x", "y")))
    graph = Graph("timeless", ops)
    assert BudgetSweep(graph, free=True, seed=0).at(peak_of(graph), Effort(0.01)) is not None
