"""Better values of a part of the choices of a merged model."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._freed_choices import solve_freed
from schedsim.algorithms.graphs._merged_model import MergedModel

from schedsim import Graph, Op


def idle_repeat() -> tuple[MergedModel, np.ndarray]:
    """The model of a schedule that repeats an op although its output is still there, a point."""
    ops = (
        Op("a", time_s=1, writes={"x": 1}),
        Op("b", time_s=1, reads=("x",), writes={"y": 1}),
        Op("c", time_s=1, reads=("x", "y")),
    )
    model = MergedModel.of(Graph("idle", ops), 8, np.array([0, 1, 0, 2]))
    return model, model.point(np.array([True, True, True, True]))


def test_a_run_that_is_not_needed_is_left_out():
    model, x = idle_repeat()
    free = np.flatnonzero(model.lb < model.ub)
    found = solve_freed(model, x, free, None)
    assert found.is_solved
    assert model.cost[free] @ found.values == 0 < model.cost @ x
    x[free] = found.values
    assert model.fits(x)


@pytest.mark.parametrize("least_gain", [0.0, 0.01])
def test_where_nothing_is_better_the_program_is_solved_all_the_same(least_gain):
    """With a least gain it has no solution, which is an answer too."""
    model, x = idle_repeat()
    free = np.array([2])  # whether the op runs again, and not how long its output is kept
    found = solve_freed(model, x, free, None, least_gain)
    assert (found.values, found.is_solved) == (None, True)


def test_a_solver_that_breaks_has_found_nothing(monkeypatch):
    """HiGHS raises on some programs of tens of thousands of non-zeros."""

    def broken(*_, **__):
        raise ValueError("vector::reserve")

    model, x = idle_repeat()
    monkeypatch.setattr("scipy.optimize.milp", broken)
    found = solve_freed(model, x, np.flatnonzero(model.lb < model.ub), None)
    assert (found.values, found.is_solved) == (None, False)
