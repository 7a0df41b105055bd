"""Where the search for copies begins: schedules of the budget and of larger ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chains import random_chain, unit_chain
from schedsim.algorithms.chains import persistent
from schedsim.algorithms.chains.frontier import frontier
from schedsim.algorithms.chains.persistent import Problem
from schedsim.algorithms.offload import _starts as starts
from schedsim.algorithms.offload._starts import chain_starts, graph_starts, ladder
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Schedule, simulate
from schedsim.plans.effort import Effort


def test_a_ladder_has_even_rungs():
    """Both ends among them; one where they are the same, none twice."""
    assert ladder(10, 22, 5) == [10, 13, 16, 19, 22]
    assert ladder(7, 7) == [7]
    assert ladder(7, 9, 10) == [7, 8, 9]


@pytest.mark.parametrize("seed", range(3))
def test_chains_begin_with_the_whole_curve(seed):
    """The best without copies at the budget, and at every rung up to store-all."""
    chain = random_chain(np.random.default_rng(seed), 8)
    problem = Problem(chain)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    budget = (problem.min_feasible_bytes + peak) // 2
    (plan,), schedules = chain_starts(chain, budget, Effort(5.0))
    assert plan.makespan_s == frontier(chain, budget).makespan_s
    told = [simulate(chain, one) for one in schedules]
    assert min(one.peak_bytes for one in told) == problem.min_feasible_bytes
    for rung in ladder(budget, peak):
        best = min(one.makespan_s for one in told if one.peak_bytes <= rung)
        assert best == frontier(chain, rung).makespan_s


def test_below_what_recomputing_can_do_the_ladder_begins_at_the_least():
    """The plan is infeasible and says so; there are schedules all the same."""
    chain = unit_chain(10)
    least = Problem(chain).min_feasible_bytes
    (plan,), schedules = chain_starts(chain, least - 1, Effort(5.0))
    assert not plan.feasible
    assert plan.min_feasible_bytes == least
    assert min(simulate(chain, one).peak_bytes for one in schedules) == least


def test_a_curve_that_takes_too_long_is_had_in_slots(monkeypatch):
    """Coarser, but within each budget."""
    chain = random_chain(np.random.default_rng(5), 10)
    monkeypatch.setattr(starts, "_MAX_POINTS", 3)
    budget = Problem(chain).min_feasible_bytes + 40
    plans, schedules = chain_starts(chain, budget, Effort(5.0))
    assert [plan.planner for plan in plans] == ["rotor"]
    assert plans[0].peak_bytes <= budget
    assert len({simulate(chain, one).peak_bytes for one in schedules}) > 3


def test_very_long_chains_begin_with_heuristics(monkeypatch):
    """At the budget and at larger ones, without the tables of the recurrence."""
    for module in (persistent, starts):
        monkeypatch.setattr(module, "MAX_STAGES", 9)
    chain = unit_chain(10)
    plans, schedules = chain_starts(chain, 9, Effort(5.0))
    assert [plan.planner for plan in plans] == ["periodic", "chen_greedy", "bisection", "revolve"]
    peaks = {simulate(chain, one).peak_bytes for one in schedules}
    assert len(peaks) >= 3


def test_graphs_begin_with_a_search_and_its_curve():
    """Legal schedules on both sides of the budget; without effort, the plan and store-all alone."""
    graph = random_training_graph(np.random.default_rng(2), 8)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    budget = peak * 9 // 10
    (plan,), schedules = graph_starts(graph, budget, Effort(0.2), 0, 1)
    peaks = [simulate(graph, one).peak_bytes for one in schedules]
    assert plan.feasible
    assert plan.schedule in schedules
    assert peak in peaks
    assert min(peaks) <= budget
    _, few = graph_starts(graph, budget, Effort(0.0), 0, 1)
    assert len(few) <= 2


def test_where_nothing_fits_the_leanest_comes_first():
    """So that copies have the least to do."""
    graph = unit_training_chain(8)
    (plan,), schedules = graph_starts(graph, 2, Effort(0.1), 0, 1)
    assert not plan.feasible
    peaks = [simulate(graph, one).peak_bytes for one in schedules]
    assert all(less <= more for less, more in itertools.pairwise(peaks))
