"""Figures of a sweep show its rows: budgets across, overheads up, proofs filled."""

from __future__ import annotations

import numpy as np
from sweep_rows import row

from schedsim.figures.plot_results import draw_best, draw_results


def test_figures_show_the_numbers():
    """Shares of the store-all peak against per cent of time; the best of all planners as steps."""
    rows = [row("a", 50, 0.3), row("a", 80, 0.2), row("b", 50, 0.25), row("b", 20, None)]
    panel = draw_results(rows).axes[0]
    first = panel.lines[0]
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([50.0, 80.0], [30.0, 20.0])
    wide = draw_results([row("a", 150, 0.0), row("a", 300, 0.0)]).axes[0].lines[0]
    assert list(wide.get_xdata()) == [150.0, 300.0]  # not moved to where they are not
    best = draw_best(rows).axes[0].lines[0]
    assert (list(best.get_xdata()), list(best.get_ydata())) == ([50.0, 80.0], [25.0, 20.0])


def test_planners_with_the_same_plans_are_all_seen():
    """Marks and lines of each are smaller than those of the one before it, which lies below."""
    names = [f"planner{i}" for i in range(7)]
    rows = [row(name, budget, 0.1) for name in names for budget in (40, 80)]
    panel = draw_results(rows).axes[0]
    named = {line.get_label(): line for line in panel.lines}
    marks = [named[name].get_markersize() for name in names]
    widths = [named[name].get_linewidth() for name in names]
    assert sorted(set(marks), reverse=True) == marks
    assert sorted(set(widths), reverse=True) == widths
    assert min(marks) > 2


def test_proven_marks_are_filled_and_others_hollow():
    """A line of each planner carries both kinds; a bar reaches from the best seed to the worst."""
    rows = [
        row("a", 50, 0.3, status="optimal"),
        row("a", 80, 0.1, seed=1),
        row("a", 80, 0.2, seed=2),
    ]
    panel = draw_results(rows).axes[0]
    marks = [line for line in panel.lines if line.get_marker() != "None" and len(line.get_xdata())]
    filled = [line for line in marks if line.get_markerfacecolor() != "white"]
    hollow = [line for line in marks if line.get_markerfacecolor() == "white"]
    assert [list(line.get_xdata()) for line in filled] == [[50.0]]
    assert [list(line.get_ydata()) for line in hollow] == [[10.0]]
    (bars,) = panel.collections
    ends = [np.round(segment[:, 1], 9).tolist() for segment in bars.get_segments()]
    assert ends == [[30.0, 30.0], [10.0, 20.0]]


def test_a_panel_for_each_workload():
    """Three across; those that are left over are not seen."""
    rows = [row("a", 50, 0.3, workload=name, content_hash=name) for name in "vwxyz"]
    figure = draw_results(rows)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == list("vwxyz")
    assert len(figure.axes) == 6


def test_where_nothing_was_found_is_marked():
    """A line down the panel, at the budget; the legend names each thing once."""
    rows = [row("a", 50, 0.3), row("a", 20, None), row("b", 20, None), row("a", 10, None)]
    panel = draw_best(rows).axes[0]
    across = [list(line.get_xdata()) for line in panel.lines if line.get_linestyle() == ":"]
    assert [x for x in across if x] == [[10.0, 10.0], [20.0, 20.0]]
    (legend,) = [axes.get_legend() for axes in panel.figure.axes]
    assert [text.get_text() for text in legend.get_texts()] == [
        *("best", "proven bound", "nothing found")
    ]


def test_the_bound_is_the_best_that_any_planner_proves():
    """11 s of 10 s: 10 per cent below what was found."""
    panel = draw_best([row("a", 50, 0.3), row("b", 50, 0.2, lower_bound_s=11.5)]).axes[0]
    named = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert np.allclose(named["best"], [20.0])
    assert np.allclose(named["proven bound"], [15.0])
