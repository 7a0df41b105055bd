"""The two pictures of a report: what is drawn are the simulation's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from four_stages import CHAIN

from schedsim import Graph, Op, Schedule, simulate

pytest.importorskip("bokeh", reason="the extra report is not installed")
from bokeh.models import HoverTool, Scatter, Span, VAreaStep

from schedsim.figures.plot import COLOURS, KINDS
from schedsim.figures.report_figures import draw

AGAIN = Schedule.from_names([*CHAIN.op_names[:6], "F1", "F2", "B2", "B1", "F0", "B0"])
SIMULATION = simulate(CHAIN, AGAIN)
TIMELINE, GRID = draw(CHAIN.graph, SIMULATION, 80)


def test_areas_stand_on_each_other_up_to_the_memory():
    """A step for each run, closed at its end, by category; no category without bytes is drawn."""
    areas = [one for one in TIMELINE.renderers if isinstance(one.glyph, VAreaStep)]
    below = np.zeros(len(AGAIN) + 1)
    for area in areas:
        data = area.data_source.data
        assert np.array_equal(data["y1"], below)
        assert data["x"][0] == -0.5
        assert data["x"][-1] == len(AGAIN) - 0.5
        below = data["y2"]
    assert below[:-1].tolist() == SIMULATION.memory_bytes.tolist()
    drawn = {name for name, bytes_ in SIMULATION.timeline.items() if bytes_.any()}
    colours = [area.glyph.fill_color for area in areas]
    assert colours == [COLOURS[name] for name in SIMULATION.timeline if name in drawn]
    assert "static" not in drawn


def test_the_peak_and_the_budget_are_marked():
    """A triangle at the run of the peak, a line at the budget; both are within the picture."""
    (peak,) = [one for one in TIMELINE.renderers if isinstance(one.glyph, Scatter)]
    assert list(peak.data_source.data["x"]) == [SIMULATION.peak_run]
    assert list(peak.data_source.data["y"]) == [SIMULATION.peak_bytes]
    (span,) = [one for one in TIMELINE.center if isinstance(one, Span)]
    assert span.location == 80
    assert TIMELINE.y_range.end > max(80, SIMULATION.peak_bytes)


def test_both_are_zoomed_together_and_never_beyond_the_runs():
    """One range for the two."""
    assert TIMELINE.x_range is GRID.x_range
    assert TIMELINE.x_range.bounds == (-0.5, len(AGAIN) - 0.5)


def test_the_grid_has_a_mark_for_each_run():
    """In the row of its op, in the colour of its kind; the first op is the uppermost row."""
    (marks,) = GRID.renderers
    data = marks.data_source.data
    assert list(data["run"]) == list(range(len(AGAIN)))
    assert list(data["row"]) == AGAIN.bind(CHAIN).tolist()
    assert list(data["op"]) == AGAIN.names
    assert [data["kind"][k] for k in (0, 4, 6, 8)] == ["forward", "loss", "recomputed", "backward"]
    assert list(data["colour"]) == [KINDS[kind] for kind in data["kind"]]
    assert GRID.y_range.start > GRID.y_range.end
    assert list(data["start_ms"][:3]) == [0.0, 1000.0, 2000.0]


def test_the_tooltip_says_every_part_that_is_drawn():
    """By the names of the columns, which are there."""
    (hover,) = [tool for tool in TIMELINE.tools if isinstance(tool, HoverTool)]
    source = hover.renderers[0].data_source.data
    parts = [label for label, _ in hover.tooltips][3:]
    assert parts
    assert set(parts) <= set(source)
    total = sum(np.asarray(source[name]) for name in parts)
    assert np.allclose(total, source["total"])
    assert total.tolist() == SIMULATION.memory_bytes.tolist()


def test_a_step_without_runs_of_any_bytes():
    """Nothing is divided by zero."""
    graph = Graph("none", (Op("f"), Op("b", "backward")))
    timeline, grid = draw(graph, simulate(graph, Schedule.store_all(graph)), 0)
    assert timeline.y_range.start == 0
    assert len(grid.renderers[0].data_source.data["run"]) == 2
