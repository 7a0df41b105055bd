"""Workloads, plans, simulations and curves as notebooks show them: words, and a picture."""

from __future__ import annotations

import base64
import html
import io
from functools import singledispatch
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..plans.curves import ParetoCurve
from ..plans.plan import Plan
from ..simulation.result import CATEGORIES, Simulation
from ..units import format_bytes, format_seconds
from .gantt import draw_gantt
from .plot import COLOURS, KINDS, byte_unit, canvas, draw_pareto, draw_timeline, second_unit

_WIDTH_IN, _DPI = 8.0, 96
# Limit on columns, more than a screen shows; more runs or ops share columns.
_MOST_CELLS = 800
_FIRST, _AGAIN = KINDS["forward"], KINDS["recomputed"]


def page(shown: Any) -> str:
    """A part of an HTML page: `shown` in words, and its picture as an image within the page.

    Names are escaped, whatever they contain.
    """
    words, figure = _words(shown), _picture(shown)
    picture = ""
    if figure is not None:
        alt = html.escape(words.partition("\n")[0], quote=True)
        picture = f'<img alt="{alt}" style="max-width:100%" src="{_image(figure)}">'
    return f"<div><pre>{html.escape(words)}</pre>{picture}</div>"


@singledispatch
def _words(shown: Any) -> str:
    return str(shown)


@_words.register
def _(chain: Chain) -> str:
    saved = sum(stage.saved_bytes for stage in chain.stages)
    return "\n".join(
        (
            f"chain {chain.name}: {chain.num_stages} stages",
            f"  saved by all  {format_bytes(saved)}",
            f"  static        {format_bytes(chain.static_bytes)}",
            f"  step time     {format_seconds(chain.store_all_s)}, where nothing is recomputed",
        )
    )


@_words.register
def _(graph: Graph) -> str:
    written = sum(sum(op.writes.values()) for op in graph.ops)
    return "\n".join(
        (
            f"graph {graph.name}: {graph.num_ops} ops",
            f"  written by all  {format_bytes(written)}",
            f"  static          {format_bytes(graph.static_bytes)}",
            f"  step time       {format_seconds(graph.store_all_s)}, where nothing is recomputed",
        )
    )


@singledispatch
def _picture(shown: Any) -> Figure | None:
    return None


@_picture.register
def _(chain: Chain) -> Figure:
    """Bytes that each stage saves, the output included, above the times of the stages."""
    outputs = np.array([stage.output_bytes for stage in chain.stages])
    saved = np.array([stage.saved_bytes for stage in chain.stages])
    seconds = np.array([stage.forward_s + stage.backward_s for stage in chain.stages])
    return _sizes(chain.name, "stage", outputs, saved, seconds)


@_picture.register
def _(graph: Graph) -> Figure:
    """Bytes that each op writes, and its time."""
    written = np.array([sum(op.writes.values()) for op in graph.ops])
    with_workspace = written + np.array([op.workspace_bytes for op in graph.ops])
    return _sizes(
        graph.name,
        "op",
        written,
        with_workspace,
        np.array([op.time_s for op in graph.ops]),
        names=("written", "workspace"),
    )


@_picture.register
def _(plan: Plan) -> Figure | None:
    """Ops against runs: the first run of each op, and repeated runs."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    if plan.schedule is None or not plan.schedule.runs.size:
        return None
    figure, axes = canvas(None, _WIDTH_IN)
    palette = ListedColormap(["white", _FIRST, _AGAIN])
    runs, num_ops = plan.schedule.runs, len(plan.schedule.op_names)
    extent = (0, runs.size, 0, num_ops)
    axes.imshow(
        _grid(runs, num_ops),
        aspect="auto",
        origin="lower",
        cmap=palette,
        vmin=0,
        vmax=2,
        interpolation="nearest",
        extent=extent,
    )
    axes.set(title=f"{plan.workload.name}, {plan.planner}", xlabel="op run", ylabel="op")
    kinds = [(_FIRST, "first run"), *([(_AGAIN, "again")] if runs.size > num_ops else [])]
    axes.legend(
        handles=[Patch(color=colour, label=label) for colour, label in kinds],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
    )
    return figure


@_picture.register
def _(simulation: Simulation) -> Figure:
    """Live bytes over the runs; for several streams, the runs over time."""
    if len(simulation.stream_names) == 1 and len(simulation.pool_names) == 1:
        return draw_timeline(simulation)
    return draw_gantt(simulation)


@_picture.register
def _(curve: ParetoCurve) -> Figure | None:
    """Overhead against budget."""
    return draw_pareto([curve]) if curve.points else None


def _sizes(
    title: str,
    label: str,
    inner: NDArray[np.int64],
    outer: NDArray[np.int64],
    seconds: NDArray[np.float64],
    names: tuple[str, str] = ("output", "saved besides"),
) -> Figure:
    """Bytes of each stage or op as stacked parts, and its time as a line."""
    figure, axes = canvas(None, _WIDTH_IN)
    factor, unit = byte_unit(int(outer.max(initial=0)))
    edges = np.arange(outer.size + 1) + 0.5
    below = np.zeros(outer.size)
    colours = (COLOURS[CATEGORIES[1]], COLOURS[CATEGORIES[2]])
    for row, colour, name in zip((inner, outer), colours, names, strict=True):
        axes.stairs(row / factor, edges, baseline=below, fill=True, color=colour, label=name)
        below = row / factor
    axes.set(title=title, xlabel=label, ylabel=unit, xlim=(edges[0], edges[-1]))
    axes.set_ylim(bottom=0)
    times = axes.twinx()
    scale, second = second_unit(float(seconds.max(initial=0.0)))
    times.stairs(seconds / scale, edges, color="black", linewidth=0.8, label="time", baseline=None)
    times.set_ylabel(second)
    times.set_ylim(bottom=0)
    handles = [*axes.get_legend_handles_labels()[0], *times.get_legend_handles_labels()[0]]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.12, 1), frameon=False, fontsize=8
    )
    return figure


def _grid(runs: NDArray[np.int32], num_ops: int) -> NDArray[np.uint8]:
    """(row, column) -> 0 nothing, 1 a first run, 2 a repeat, which shows over first runs."""
    first = np.full(num_ops, -1, np.int64)
    positions = np.arange(runs.size)
    first[runs[::-1]] = positions[::-1]  # the earliest is written last
    again = (positions != first[runs]).astype(np.uint8)
    rows, columns = min(num_ops, _MOST_CELLS), min(runs.size, _MOST_CELLS)
    grid = np.zeros((rows, columns), np.uint8)
    where = (runs.astype(np.int64) * rows // num_ops, positions * columns // runs.size)
    np.maximum.at(grid, where, again + np.uint8(1))
    return grid


def _image(figure: Figure) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, bbox_inches="tight", metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
