"""The two pictures of a report, which zoom together: memory by category, and the grid of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Range1d
from bokeh.models.annotations import Span
from bokeh.plotting import figure
from numpy.typing import NDArray

from ..dataflow.graph import Graph
from ..simulation.simulator import RUN_KINDS, Simulation
from .plot import COLOURS, KINDS, byte_unit

WIDTH, TIMELINE_HEIGHT, GRID_HEIGHT = 1120, 360, 360


def draw(graph: Graph, simulation: Simulation, budget_bytes: int) -> tuple[Any, Any]:
    """Bokeh figures of `simulation`: memory over runs, and op over runs; O(runs)."""
    runs = simulation.num_runs
    x_range = Range1d(start=-0.5, end=runs - 0.5, bounds=(-0.5, runs - 0.5))
    return _timeline(simulation, budget_bytes, x_range), _grid(graph, simulation, x_range)


def _columns(simulation: Simulation) -> dict[str, Any]:
    kinds = [RUN_KINDS[kind] for kind in simulation.run_kinds.tolist()]
    return {
        "run": np.arange(simulation.num_runs),
        "op": simulation.run_names,
        "kind": kinds,
        "colour": [KINDS[kind] for kind in kinds],
        "start_ms": simulation.start_s * 1e3,
        "time_ms": simulation.run_s * 1e3,
    }


def _figure(x_range: Range1d, height: int, label: str, **options: Any) -> Any:
    drawing = figure(
        width=WIDTH,
        height=height,
        sizing_mode="scale_width",
        x_range=x_range,
        tools="xpan,xwheel_zoom,box_zoom,reset,save",
        active_scroll="xwheel_zoom",
        active_drag="xpan",
        output_backend="canvas",
        **options,
    )
    drawing.xaxis.axis_label = "run"
    drawing.yaxis.axis_label = label
    drawing.toolbar.logo = None
    return drawing


def _timeline(simulation: Simulation, budget_bytes: int, x_range: Range1d) -> Any:
    factor, unit = byte_unit(max(simulation.peak_bytes, budget_bytes))
    top = max(simulation.peak_bytes, budget_bytes, 1) / factor
    drawing = _figure(x_range, TIMELINE_HEIGHT, unit, y_range=(0, top * 1.06))
    # Steps from each run to the next; the last step is closed.
    edges = np.arange(simulation.num_runs + 1) - 0.5
    columns = _columns(simulation)
    below = np.zeros(simulation.num_runs)
    parts = []
    for name, row in simulation.timeline.items():
        if not row.any():
            continue
        size = row / factor
        columns[name] = size
        drawing.varea_step(
            edges,
            _closed(below),
            _closed(below + size),
            step_mode="after",
            color=COLOURS[name],
            legend_label=name,
        )
        below = below + size
        parts.append((name, f"@{{{name}}}{{0.000}} {unit}"))
    columns["total"] = below
    source = ColumnDataSource(columns)
    drawing.step("run", "total", source=source, mode="center", color="black", width=1)
    # The pointer cannot hit lines in steps, so invisible bars over the whole height take it.
    bars = drawing.vbar(
        "run", 1.0, top * 1.06, source=source, fill_alpha=0, line_alpha=0,
        hover_fill_alpha=0.1, hover_fill_color="black", hover_line_alpha=0,
    )  # fmt: skip
    tips = [
        ("run", "@run: @op (@kind)"),
        ("from", "@start_ms{0.000} ms, for @time_ms{0.000} ms"),
        ("in use", f"@total{{0.000}} {unit}"),
        *parts,
    ]
    drawing.add_tools(HoverTool(renderers=[bars], tooltips=tips, point_policy="follow_mouse"))
    peak = simulation.peak_bytes / factor
    drawing.scatter(
        [simulation.peak_run], [peak], marker="inverted_triangle", size=9, color="black"
    )
    drawing.add_layout(
        Span(location=budget_bytes / factor, dimension="width", line_dash="dashed", line_width=1)
    )
    _legend_above(drawing)
    return drawing


def _legend_above(drawing: Any) -> None:
    """Put the legend in a row above the picture, where it hides nothing."""
    if not drawing.legend:  # no category has any bytes
        return
    drawing.legend.orientation = "horizontal"
    drawing.legend.border_line_color = None
    drawing.legend.padding = 2
    drawing.add_layout(drawing.legend[0], "above")


def _closed(row: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.append(row, row[-1] if row.size else 0.0)


def _grid(graph: Graph, simulation: Simulation, x_range: Range1d) -> Any:
    drawing = _figure(x_range, GRID_HEIGHT, "op", y_range=(graph.num_ops - 0.5, -0.5))
    columns = _columns(simulation)
    columns["row"] = simulation.schedule.bind(graph)
    everything = ColumnDataSource(columns)
    # A mark is at least a dot, and at most a cell.
    size = max(2.0, min(9.0, 1000 / max(1, simulation.num_runs)))
    marks = drawing.scatter(
        "run", "row", source=everything, marker="square", size=size, color="colour",
        line_color=None, legend_group="kind",
    )  # fmt: skip
    tips = [("run", "@run: @op (@kind)"), ("from", "@start_ms{0.000} ms")]
    drawing.add_tools(HoverTool(renderers=[marks], tooltips=tips))
    _legend_above(drawing)
    return drawing
