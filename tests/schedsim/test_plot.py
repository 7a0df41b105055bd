"""Figures show the simulation's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain, unit_chain
from matplotlib.figure import Figure
from training_graphs import unit_training_chain

import schedsim
from schedsim.figures.plot import draw_pareto, draw_schedule, draw_timeline, schedule_grid


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


def test_curves_of_graphs_have_a_mark_per_point():
    """Proven ones filled, others hollow; the bound and the knee beside them."""
    curve = schedsim.pareto(unit_training_chain(10), effort=0.05, num_points=8)
    axes = draw_pareto([curve]).axes[0]
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    assert sum(line.get_xdata().size for line in map(_as_arrays, marks)) == len(curve.points)
    _, labels = axes.get_legend_handles_labels()
    assert {"proven bound", "proven least memory", "knee"} <= set(labels)


def _as_arrays(line):
    line.set_data(*map(np.asarray, line.get_data()))
    return line


@pytest.mark.parametrize("against", ["runs", "time"])
def test_the_strip_marks_every_repeated_run(against):
    """F0 F1 loss B1 F0 B0, each of a second but the loss: the fifth run is a repetition."""
    chain = unit_chain(2)
    schedule = schedsim.Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])
    simulation = schedsim.simulate(chain, schedule)
    axes = draw_timeline(simulation, against=against).axes[0]
    lanes = {patch.get_label(): patch.get_data() for patch in axes.child_axes[0].patches}
    filled = lanes["recomputed"].values - lanes["recomputed"].baseline
    assert filled.tolist() == [0, 0, 0, 0, 1, 0]
    assert lanes["recomputed"].edges[-1] == {"runs": 6, "time": 5}[against]


def test_long_timelines_keep_their_peak():
    """Runs share columns, and the highest of them is shown."""
    chain = unit_chain(1600)
    simulation = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
    patches = draw_timeline(simulation).axes[0].patches
    tops = np.max([patch.get_data().values for patch in patches], axis=0)
    assert tops.size == 1500
    assert tops.max() * 1000 == simulation.peak_bytes  # in kB


def test_the_legend_of_a_schedule_names_what_is_there():
    """Nothing is recomputed in the store-all step, and no copy is made."""
    chain = schedsim.Chain.from_arrays(
        "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
    )
    for names, extra in (
        (["F0", "F1", "loss", "B1", "B0"], []),
        (["F0", "F1", "loss", "B1", "F0", "B0"], ["recomputed"]),
    ):
        simulation = schedsim.simulate(chain, schedsim.Schedule.from_names(names))
        legend = draw_schedule(chain, simulation).axes[0].get_legend()
        shown = {text.get_text() for text in legend.get_texts()}
        assert shown == {"forward", "loss", "backward", *extra}
