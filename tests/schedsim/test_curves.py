"""The knee, and curves as Python and JSON see them."""

from __future__ import annotations

import json

import pytest
from chains import unit_chain
from training_graphs import unit_training_chain

import schedsim
from schedsim.plans.curves import find_knee


def test_the_knee_of_a_hand_made_curve():
    """Scaled budgets 0, .1, .5, 1 and times 1, .25, .125, 0: .65 and .375 below the chord."""
    assert find_knee([10, 12, 20, 30], [9.0, 3.0, 2.0, 1.0]) == 1
    assert find_knee([10, 12, 20, 30], [9.0, 8.0, 2.0, 1.0]) == 2


@pytest.mark.parametrize(
    ("budgets", "times"),
    [([], []), ([1, 2], [2.0, 1.0]), ([0, 1, 2], [2.0, 1.0, 0.0]), ([0, 1, 2], [2.0, 1.9, 0.0])],
)
def test_no_knee_above_the_chord(budgets, times):
    """Too few points, all on the chord, or one above it."""
    assert find_knee(budgets, times) is None


def test_chains_have_a_knee_and_a_least_memory():
    """The exact curve is its own bound."""
    curve = schedsim.pareto(unit_chain(12))
    assert curve.knee in curve.points[1:-1]
    assert curve.least_memory_bytes == curve.points[0].budget_bytes
    assert all(p.exact and p.lower_bound_s == p.makespan_s for p in curve.points)
    assert "knee" in str(curve)


@pytest.mark.slow
def test_graphs_have_curves():
    """As Python, as text and as JSON, the knee among the points."""
    graph = unit_training_chain(10)
    curve = schedsim.pareto(graph, effort=0.05, num_points=6, seed=1)
    assert curve.points == schedsim.pareto(graph, effort=0.05, num_points=6, seed=1).points
    document = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert [p["budget_bytes"] for p in document["points"]] == [p.budget_bytes for p in curve.points]
    assert document["knee_budget_bytes"] in [p.budget_bytes for p in curve.points]
    assert "fixed order" in str(curve)
    sampled = schedsim.pareto(graph, "dtr", budgets=[p.budget_bytes for p in curve.points])
    assert sampled.points
    assert sampled.points[-1].makespan_s >= curve.points[-1].makespan_s


def test_options_of_graphs_are_refused_elsewhere():
    """On chains and for other planners; budgets by the frontier."""
    with pytest.raises(schedsim.SchedsimError, match="order='free'"):
        schedsim.pareto(unit_chain(4), order="free")
    with pytest.raises(schedsim.SchedsimError, match=r"effort=1\.0"):
        schedsim.pareto(unit_chain(4), effort=1.0)
    with pytest.raises(schedsim.SchedsimError, match="effort -1 is not at least 0"):
        schedsim.pareto(unit_training_chain(3), effort=-1)
    with pytest.raises(schedsim.SchedsimError, match="seed=1"):
        schedsim.pareto(unit_training_chain(3), "dtr", seed=1)
    with pytest.raises(schedsim.SchedsimError, match="chooses its budgets"):
        schedsim.pareto(unit_chain(4), budgets=[5])
