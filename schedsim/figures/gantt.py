"""Figures of schedules in time: streams as rows with their runs as bars, memory pools below.

Like `schedsim.figures.plot`, every function returns a matplotlib ``Figure`` made without pyplot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..simulation.result import RUN_KINDS, Simulation
from .plot import KINDS, byte_unit, canvas, draw_stack, plain, second_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Heights in inches: a row of bars, a memory panel, title and labels.
_ROW, _PANEL, _MARGIN = 0.34, 1.5, 1.1
# Limit on columns of memory, more than a page shows; beyond it, neighbours share a column of their
# largest value.
_MOST_COLUMNS = 1500
# Bars narrower than this share of the width are merged with neighbours of the same kind; a single
# one is drawn this wide.
_THINNEST, _MARK = 1 / 4000, 1 / 1500
# Bars wider than this share of the width get a white edge, which would cover thinner bars.
_EDGED = 1 / 200
# Up to this many pools have a panel each, by category; more pools share a panel, with a line each.
_MOST_PANELS = 3
# Colours of these lines, and of kinds without a colour of their own.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")


class Paint(NamedTuple):
    """How bars are coloured.

    Attributes
    ----------
    kinds : (num_runs,) str
        A kind per run.
    colours
        Kind -> colour; the legend follows its order.
    """

    kinds: Sequence[str]
    colours: Mapping[str, str]


def draw_gantt(
    simulation: Simulation,
    *,
    streams: Sequence[str] | Mapping[str, str] | None = None,
    label_of: Callable[[str], str] | None = None,
    paint: Paint | None = None,
    capacities: Mapping[str, int] | None = None,
    memory: bool = True,
    title: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Streams as rows, runs as bars over time coloured by kind, memory pools below.

    Parameters
    ----------
    streams
        The streams to draw, from the top; a mapping gives the name of each row. By default all
        streams that run something.
    label_of
        Op name -> text in the bar, for example the number of a micro-batch; by default the op name.
        Labels that do not fit their bar are left out.
    paint
        Kinds of runs and their colours; by default those of
        `schedsim.simulation.categories.RUN_KINDS`.
    capacities
        Memory pool -> bytes, drawn as dashed lines.
    memory
        Whether pools are drawn below, by category for up to three, as lines for more.
    axes
        Draw the bars, without memory, into these.

    Notes
    -----
    Where a page cannot show all, neighbouring bars of one kind become one bar, and neighbouring
    columns of memory become one with the largest value, so that no peak is lost.

    Examples
    --------
    >>> import schedsim
    >>> ops = (schedsim.Op("F0.1", time_s=1, writes={"x": 4}, stream="compute:0"),
    ...        schedsim.Op("F1.1", time_s=1, reads=("x",), stream="compute:1"))
    >>> graph = schedsim.Graph("g", ops)
    >>> run = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
    >>> figure = draw_gantt(run, label_of=lambda name: name.split(".")[1], memory=False)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1', '1']
    """
    names = _rows(simulation, streams)
    if axes is not None:
        figure, bars = canvas(axes)
        pools: list[str] = []
    else:
        pools = _shown_pools(simulation) if memory else []
        panels = min(len(pools), 1 if len(pools) > _MOST_PANELS else len(pools))
        height = _ROW * max(len(names), 2)
        figure, (bars, *below) = _stack([height, *[_PANEL] * panels])
    row_names = streams if isinstance(streams, Mapping) else {}
    _draw_bars(bars, simulation, names, row_names, label_of, paint)
    bars.set_title(plain(_title(simulation) if title is None else title), fontsize=11)
    if pools:
        _draw_memory(below, simulation, pools, capacities or {})
        bars.tick_params(labelbottom=False)
    _time_axis(below[-1] if pools else bars, simulation)
    return figure


def draw_pools(simulation: Simulation, *, capacities: Mapping[str, int] | None = None) -> Figure:
    """Memory of each pool over time by category, stacked, with its peak and capacity marked.

    A strip above shows when each stream is busy. Up to three pools have a panel each; more share
    one, with a line each.
    """
    pools = _shown_pools(simulation) or list(simulation.pool_names[:1])
    names = _rows(simulation, None)
    panels = 1 if len(pools) > _MOST_PANELS else len(pools)
    figure, (bars, *below) = _stack([0.17 * max(len(names), 3), *[2.4] * panels])
    _draw_bars(bars, simulation, names, {}, lambda _: "", None)
    bars.set_title(plain(_title(simulation)), fontsize=11)
    bars.tick_params(labelbottom=False)
    _draw_memory(below, simulation, pools, capacities or {})
    _time_axis(below[-1], simulation)
    return figure


def _stack(heights: list[float]) -> tuple[Figure, list[Axes]]:
    """A figure with stacked axes that share the time axis; `heights` in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, sum(heights) + _MARGIN + 0.25 * (len(heights) - 1)))
    grid = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    figure.subplots_adjust(hspace=0.25 * len(heights) / sum(heights))
    return figure, list(grid[:, 0])


def _title(simulation: Simulation) -> str:
    again, copies = simulation.num_recomputed, simulation.num_copies
    what = [f"{again} recomputed"] if again else []
    what += [f"{copies} copies"] if copies else []
    more = f", {', '.join(what)}" if what else ""
    return f"{simulation.workload_name}: {simulation.overhead:+.1%} time{more}"


def _rows(simulation: Simulation, streams: Iterable[str] | None) -> list[str]:
    if streams is None:
        used = set(np.unique(simulation.run_streams).tolist())
        return [name for i, name in enumerate(simulation.stream_names) if i in used]
    unknown = [name for name in streams if name not in simulation.stream_names]
    if unknown:
        raise ValueError(f"no stream {unknown[0]!r}: one of {', '.join(simulation.stream_names)}")
    return list(streams)


def _shown_pools(simulation: Simulation) -> list[str]:
    return [pool for pool, peak in simulation.peak_by_pool.items() if peak]


def _draw_bars(
    axes: Axes,
    simulation: Simulation,
    streams: list[str],
    row_names: Mapping[str, str],
    label_of: Callable[[str], str] | None,
    paint: Paint | None,
) -> None:
    from matplotlib.patches import Patch

    factor, _ = second_unit(simulation.makespan_s)
    start, end = simulation.start_s / factor, simulation.end_s / factor
    if paint is None:
        paint = Paint([RUN_KINDS[code] for code in simulation.run_kinds.tolist()], KINDS)
    palette, kind = paint.colours, np.array(paint.kinds)
    width = float(end.max()) if end.size else 1.0
    numbers = {name: i for i, name in enumerate(simulation.stream_names)}
    for row, stream in enumerate(streams):
        mine = simulation.run_streams == numbers[stream]
        for name, colour in palette.items():
            chosen = np.flatnonzero(mine & (kind == name))
            if not chosen.size:
                continue
            spans = _merged(start[chosen], end[chosen], width)
            thin = float(np.median(end[chosen] - start[chosen]))
            axes.broken_barh(
                spans,
                (row - 0.42, 0.84),
                facecolors=colour,
                edgecolors="white" if thin > width * _EDGED else "none",
                linewidth=0.5,
                rasterized=len(spans) > 20_000,
                snap=False,  # snapping to whole pixels would lose the thinnest bars
            )
    _draw_labels(axes, simulation, streams, start, end, kind, palette, label_of)
    rows = [plain(row_names.get(name, name)) for name in streams]
    axes.set_yticks(range(len(streams)), rows, fontsize=8)
    axes.set_ylim(len(streams) - 0.5, -0.5)
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    there = set(kind[np.isin(simulation.run_streams, [numbers[name] for name in streams])].tolist())
    axes.legend(
        handles=[Patch(color=c, label=name) for name, c in palette.items() if name in there],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
    )


def _merged(
    start: NDArray[np.float64], end: NDArray[np.float64], width: float
) -> list[tuple[float, float]]:
    """Bars as (start, width); bars that touch and are too thin to be told apart are merged."""
    thinnest = width * _THINNEST
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    thin = end - start < thinnest
    near = start[1:] - end[:-1] < thinnest
    first = np.concatenate([[True], ~(near & thin[1:] & thin[:-1])])
    begins = np.flatnonzero(first)
    lasts = np.append(begins[1:], start.size) - 1
    # A run that takes no time still leaves a mark.
    widths = np.maximum(end[lasts] - start[begins], width * _MARK)
    return list(zip(start[begins].tolist(), widths.tolist(), strict=True))


def _draw_labels(
    axes: Axes,
    simulation: Simulation,
    streams: list[str],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    kind: NDArray[Any],
    palette: Mapping[str, str],
    label_of: Callable[[str], str] | None,
) -> None:
    """Write the text of each bar, as large as fits, where it can be read."""
    figure = axes.get_figure(root=True)
    if figure is None or not end.size or not end.max():
        return
    # Points of the page per unit of time; a letter is about 0.62 of its size wide.
    scale = figure.get_size_inches()[0] * axes.get_position().width * 72 / float(end.max())
    names = simulation.run_names
    numbers = [simulation.stream_names.index(name) for name in streams]
    for row, number in enumerate(numbers):
        for k in np.flatnonzero(simulation.run_streams == number).tolist():
            room = (end[k] - start[k]) * scale - 2
            if room < 4:
                continue
            text = names[k] if label_of is None else label_of(names[k])
            size = min(8.0, room / (0.62 * max(len(text), 1)))
            if text and size >= 4:
                axes.text(
                    (start[k] + end[k]) / 2,
                    row,
                    plain(text),
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=_ink(palette.get(str(kind[k]), "white")),
                    clip_on=True,
                )


def _ink(colour: str) -> str:
    """Black or white, whichever is readable on `colour`."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


def _draw_memory(
    panels: list[Axes], simulation: Simulation, pools: list[str], capacities: Mapping[str, int]
) -> None:
    time_factor, _ = second_unit(simulation.makespan_s)
    edges = np.append(simulation.event_s, simulation.makespan_s) / time_factor
    largest = max(simulation.peak_by_pool[pool] for pool in pools)
    if len(panels) < len(pools):
        factor, unit = byte_unit(largest)
        for number, pool in enumerate(pools):
            total = simulation.pool_bytes(pool)
            shown = _columns(total, edges)
            axes = panels[0]
            axes.stairs(
                total[shown] / factor,
                np.append(edges[shown], edges[-1]),
                baseline=None,
                color=_LINES[number % len(_LINES)],
                linestyle=("-", "--", ":")[number // len(_LINES) % 3],
                linewidth=1.1,
                label=f"{plain(pool)}, {total.max() / factor:.3g} {unit}",
            )
        panels[0].set_ylabel(f"live memory [{unit}]", fontsize=9)
        panels[0].set_ylim(bottom=0)
        _legend(panels[0], lines=len(pools))
        return
    for axes, pool in zip(panels, pools, strict=True):
        _draw_pool(axes, simulation, pool, edges, capacities.get(pool))


def _draw_pool(
    axes: Axes,
    simulation: Simulation,
    pool: str,
    edges: NDArray[np.float64],
    capacity: int | None,
) -> None:
    peak = simulation.peak_by_pool[pool]
    factor, unit = byte_unit(max(peak, capacity or 0))
    rows = simulation.pool_timeline(pool)
    total = np.sum(list(rows.values()), axis=0)
    shown = _columns(total, edges)
    steps = np.append(edges[shown], edges[-1])
    stacked = {name: row[shown] / factor for name, row in rows.items() if row.any()}
    draw_stack(axes, stacked, steps)
    at = int(np.argmax(total)) if total.size else 0
    middle = edges[at] if total.size else 0.0
    place = middle / edges[-1] if edges[-1] else 0.5
    axes.plot([middle], [peak / factor], "kv", markersize=4, clip_on=False)
    axes.annotate(
        f"peak {peak / factor:.3g} {unit}",
        (middle, peak / factor),
        textcoords="offset points",
        xytext=(0, 5),
        ha="left" if place < 0.2 else "right" if place > 0.8 else "center",
        fontsize=8,
    )
    if capacity is not None:
        axes.axhline(capacity / factor, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"capacity {capacity / factor:.3g} {unit}",
            (1.0 if place < 0.4 else 0.0, capacity / factor),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(-4 if place < 0.4 else 4, 4),
            ha="right" if place < 0.4 else "left",
            fontsize=8,
        )
    axes.set_ylabel(f"{plain(pool)} [{unit}]", fontsize=9)
    axes.set_ylim(0, 1.2 * max(peak, capacity or 0) / factor or 1)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(axes)


def _legend(axes: Axes, *, lines: int = 0) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(  # from the top, as they are stacked
            handles if lines else handles[::-1],
            labels if lines else labels[::-1],
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            frameon=False,
            fontsize=8,
            ncols=1 + lines // 12,
        )


def _columns(total: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Events to draw: the highest and the last of each instant, or of each column of the page."""
    column = edges[:-1]
    if np.unique(column).size > _MOST_COLUMNS:
        column = (edges[:-1] / edges[-1] * _MOST_COLUMNS).astype(int)
    begins = np.flatnonzero(np.diff(column, prepend=-1))
    lasts = np.append(begins[1:], total.size) - 1
    highest = [
        begin + int(np.argmax(total[begin : last + 1]))
        for begin, last in zip(begins.tolist(), lasts.tolist(), strict=True)
    ]
    return np.unique(np.concatenate([highest, lasts]))


def _time_axis(axes: Axes, simulation: Simulation) -> None:
    factor, unit = second_unit(simulation.makespan_s)
    axes.set_xlabel(f"time [{unit}]")
    axes.set_xlim(0, simulation.makespan_s / factor or 1)
