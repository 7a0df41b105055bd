"""Figures show the simulation's numbers."""

from __future__ import annotations

import numpy as np
from chains import random_chain, unit_chain
from matplotlib.figure import Figure

import schedsim
from schedsim.plot import draw_pareto, draw_schedule, draw_timeline, schedule_grid


def test_the_timeline_adds_up_to_the_memory():
    """The uppermost step of the stack is the simulated memory of every run."""
    chain = random_chain(np.random.default_rng(0), 8)
    simulation = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
    axes = draw_timeline(simulation, budget_bytes=300).axes[0]  # below 1 kB the unit is the byte
    tops = [patch.get_data().values for patch in axes.patches]
    assert np.allclose(np.max(tops, axis=0), simulation.memory_bytes)


def test_the_pareto_curve_has_every_break_point():
    """Budgets and overheads in per cent."""
    curve = schedsim.pareto(unit_chain(8))
    line = draw_pareto([curve]).axes[0].lines[0]
    assert line.get_xdata().tolist() == [point.budget_bytes for point in curve.points]
    assert np.allclose(line.get_ydata(), [100 * point.overhead for point in curve.points])


def test_the_grid_marks_what_runs():
    """F0 F1 loss B1 F0 B0: a stage a row; 1 forward, 2 recomputed, 3 loss, 4 backward."""
    chain = unit_chain(2)
    schedule = schedsim.Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])
    simulation = schedsim.simulate(chain, schedule)
    assert schedule_grid(chain, simulation).tolist() == [[1, 0, 0, 0, 2, 4], [0, 1, 3, 4, 0, 0]]
    assert draw_schedule(chain, simulation).axes[0].get_xlabel() == "op run"


def test_planners_differ_by_marker_too():
    """Colour is never the only difference, and points on the axis are not cut off."""
    chain = unit_chain(8)
    curves = [schedsim.pareto(chain, name) for name in ("frontier", "periodic", "bisection")]
    lines = draw_pareto(curves).axes[0].lines[1:]
    assert len({line.get_marker() for line in lines}) == 2
    assert not any(line.get_clip_on() for line in lines)


def test_drawing_into_given_axes():
    """All three draw into the axes they are given and return the figure that owns them."""
    chain = unit_chain(4)
    simulation = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
    figure = Figure()
    for axes, draw in zip(
        figure.subplots(3),
        (
            lambda axes: draw_timeline(simulation, axes=axes),
            lambda axes: draw_pareto([schedsim.pareto(chain)], axes=axes),
            lambda axes: draw_schedule(chain, simulation, axes=axes),
        ),
        strict=True,
    ):
        assert draw(axes) is figure
        assert axes.get_xlabel()
