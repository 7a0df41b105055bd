"""Figures: memory over time, overhead against budget, a schedule as a grid.

Every function returns a matplotlib ``Figure`` made without pyplot; ``axes`` draws into an existing
one instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..allocators import Allocation
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..plans.curves import ParetoCurve
from ..simulation.result import CATEGORIES, RUN_KINDS, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart.
COLOURS = dict(
    zip(
        CATEGORIES,
        ("#999999", "#0072B2", "#56B4E9", "#D55E00", "#F0E442", "#009E73", "#CC79A7"),
        strict=True,
    )
)
KINDS = dict(zip(RUN_KINDS, ("#0072B2", "#E69F00", "#000000", "#D55E00", "#009E73"), strict=True))
_LANES = (
    ("forward", ("forward",)),
    ("recomputed", ("recomputed",)),
    ("backward", ("loss", "backward")),
)
# Limit on columns, more than a page shows; more runs share columns.
_MOST_COLUMNS = 1500
# Axes of a curve are logarithmic where budgets, or overheads, spread further than this.
_LOG_FROM, _LOG_OVERHEAD = 20, 2.0
# Colour and marker of each curve, so that curves differ without colours too.
_LINES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#000000", "v"),
    ("#E69F00", "P"),
    ("#56B4E9", "X"),
)


def canvas(axes: Axes | None, width: float = 8.0) -> tuple[Figure, Axes]:
    """`axes` and their figure; without axes a new figure, `width` inches wide."""
    from matplotlib.figure import Figure

    if axes is not None:
        owner = axes.get_figure(root=True)
        assert isinstance(owner, Figure)
        return owner, axes

    figure = Figure(figsize=(width, 4.2))
    return figure, figure.subplots()


def plain(text: str) -> str:
    """`text` escaped, so that matplotlib reads no formula between dollar signs."""
    return text.replace("$", r"\$")


def byte_unit(largest: int) -> tuple[float, str]:
    """Factor and name of the unit in which `largest` is a handy number."""
    for factor, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, name
    return 1.0, "B"


def second_unit(longest: float) -> tuple[float, str]:
    """Factor and name of the unit in which `longest` is a handy number."""
    for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if longest >= factor:
            return factor, name
    return (1e-9, "ns") if longest else (1.0, "s")


def draw_timeline(
    simulation: Simulation,
    *,
    budget_bytes: int | None = None,
    against: Literal["runs", "time"] = "runs",
    allocation: Allocation | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Live bytes by category during each run, stacked, with the peak and the budget marked.

    A strip above shows what runs: forwards, recomputed forwards, and the loss with the backward.

    Parameters
    ----------
    against
        ``"runs"`` gives every run the same width, ``"time"`` its time.
    allocation
        The bytes that an allocator reserves in this simulation; a line shows them during each run
        of the first step.

    Notes
    -----
    The categories add up to ``simulation.memory_bytes`` at every run. Beyond 1,500 runs, neighbours
    share a column. The column shows the run with the most memory, so that no peak is lost, and in
    the strip the share of each kind.
    """
    figure, axes = canvas(axes)
    most = max(simulation.peak_bytes, allocation.peak_reserved_bytes if allocation else 0)
    factor, unit = byte_unit(max(most, budget_bytes or 0))
    starts = _columns(simulation.num_runs)
    shown = _highest(simulation.memory_bytes, starts)
    edges, x_label, middle = _x_axis(simulation, starts, against)
    timeline = simulation.timeline.items()
    draw_stack(axes, {name: row[shown] / factor for name, row in timeline if row.any()}, edges)
    if allocation is not None:
        _draw_reserved(axes, allocation, simulation.num_runs, starts, edges, factor)
    peak = simulation.peak_bytes / factor
    place = middle / edges[-1] if edges[-1] else 0.5
    axes.plot([middle], [peak], "kv", markersize=5)
    axes.annotate(
        f"peak {peak:.3g} {unit} ({plain(simulation.peak_op)})",
        (middle, peak),
        textcoords="offset points",
        xytext=(0, 7),
        ha="left" if place < 0.2 else "right" if place > 0.8 else "center",
        fontsize=8,
    )
    if budget_bytes is not None:
        right = place < 0.4
        axes.axhline(budget_bytes / factor, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"budget {budget_bytes / factor:.3g} {unit}",
            (1.0 if right else 0.0, budget_bytes / factor),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(-4 if right else 4, 7),
            ha="right" if right else "left",
            fontsize=8,
        )
    again = simulation.num_recomputed
    axes.set_title(
        f"{plain(simulation.workload_name)}: {simulation.overhead:+.1%} time, "
        f"{again} of {simulation.num_runs} runs repeated",
        pad=44,
        fontsize=11,
    )
    axes.set(xlabel=x_label, ylabel=f"live memory [{unit}]", xlim=(0, edges[-1] or 1))
    axes.set_ylim(bottom=0, top=1.13 * max(most, budget_bytes or 0) / factor or 1)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(  # from the top, as they are stacked
        handles[::-1],
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
    )
    _draw_lanes(axes, simulation, starts, edges)
    return figure


def draw_stack(
    axes: Axes, rows: Mapping[str, NDArray[np.float64]], edges: NDArray[np.float64]
) -> None:
    """Areas on top of each other, one per category, and their outline.

    Parameters
    ----------
    rows
        Category -> heights of the columns, ``(num_columns,)``.
    edges
        Starts of the columns and the end of the last one, ``(num_columns + 1,)``.
    """
    below = np.zeros(edges.size - 1)
    for name, row in rows.items():
        above = below + row
        axes.stairs(
            above,
            edges,
            baseline=below,
            fill=True,
            color=COLOURS[name],
            linewidth=0,
            label=name,
        )
        below = above
    axes.stairs(below, edges, baseline=None, color="black", linewidth=0.6)


def _draw_reserved(
    axes: Axes,
    allocation: Allocation,
    num_runs: int,
    starts: NDArray[np.int64],
    edges: NDArray[np.float64],
    factor: float,
) -> None:
    """Draw the most bytes reserved during the runs of each column, up to a run that fails."""
    reserved = np.full(2 * num_runs, np.nan)
    series = allocation.reserved_bytes[: reserved.size]
    reserved[: series.size] = series
    during = np.maximum.reduceat(reserved[0::2], starts)
    label = f"reserved by {allocation.allocator}"
    axes.stairs(during / factor, edges, baseline=None, color="black", linestyle=":", label=label)


def draw_validation(report: dict[str, Any], *, axes: Axes | None = None) -> Figure:
    """Bytes during each run as predicted (filled) and measured (line), from a validation report.

    Parameters
    ----------
    report
        Content of a ``schedsim.validation/1`` file.
    """
    figure, axes = canvas(axes)
    predicted = np.array(report["timeline"]["predicted_bytes"], dtype=float)
    measured = np.array(report["timeline"]["measured_bytes"], dtype=float)
    if not predicted.size:
        raise ValueError("no runs")
    budget = report.get("budget_bytes")
    factor, unit = byte_unit(int(max([*predicted, *measured, budget or 0])))
    edges = np.arange(predicted.size + 1)
    axes.stairs(predicted / factor, edges, fill=True, color="#56B4E9", label="predicted")
    if measured.size == predicted.size:
        axes.stairs(measured / factor, edges, color="#D55E00", linewidth=1.2, label="measured")
    if budget is not None:
        axes.axhline(budget / factor, color="black", linestyle="--", linewidth=1, label="budget")
    peaks = report["predicted"]["peak_bytes"], report["measured"]["peak_bytes"]
    gap = peaks[1] / peaks[0] - 1.0 if peaks[0] else 0.0
    axes.set(
        title=f"{plain(str(report['name']))}: measured peak {gap:+.2%} of predicted",
        xlabel="op run",
        ylabel=f"live memory [{unit}]",
        xlim=(0, predicted.size),
    )
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return figure


def _draw_lanes(
    axes: Axes, simulation: Simulation, starts: NDArray[np.int64], edges: NDArray[np.float64]
) -> None:
    """The strip above a timeline: a lane per kind of run, filled where it runs."""
    strip = axes.inset_axes((0.0, 1.02, 1.0, 0.12), sharex=axes)
    sizes = np.diff([*starts.tolist(), simulation.num_runs])
    for lane, (label, kinds) in enumerate(_LANES):
        codes = [RUN_KINDS.index(kind) for kind in kinds]
        among = np.isin(simulation.run_kinds, codes).astype(np.int64)
        share = np.add.reduceat(among, starts) / sizes
        base = 1.25 * (len(_LANES) - 1 - lane)
        colour = KINDS[kinds[-1]]
        strip.stairs(
            base + share, edges, baseline=base, fill=True, color=colour, linewidth=0.4, label=label
        )
        strip.axhline(base, color="#BBBBBB", linewidth=0.4)
    strip.set_yticks([1.25 * lane + 0.5 for lane in range(len(_LANES))])
    strip.set_yticklabels([label for label, _ in reversed(_LANES)], fontsize=7)
    strip.tick_params(left=False, bottom=False, labelbottom=False)
    strip.spines[:].set_visible(False)
    strip.set_ylim(-0.05, 1.25 * len(_LANES))


def _columns(num_runs: int) -> NDArray[np.int64]:
    """The first run of each column."""
    return np.unique(
        np.linspace(0, num_runs, min(num_runs, _MOST_COLUMNS), endpoint=False).astype(int)
    )


def _highest(memory: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The run of the most memory in each column."""
    ends = [*starts[1:].tolist(), memory.size]
    return np.array(
        [first + int(np.argmax(memory[first:end])) for first, end in zip(starts, ends, strict=True)]
    )


def _x_axis(
    simulation: Simulation, starts: NDArray[np.int64], against: Literal["runs", "time"]
) -> tuple[NDArray[np.float64], str, float]:
    """Edges of the columns, the label, and the middle of the peak's run."""
    if against == "runs":
        edges = np.append(starts, simulation.num_runs).astype(float)
        return edges, "op run", simulation.peak_run + 0.5
    passed = np.concatenate([[0.0], np.cumsum(simulation.run_s)])
    factor, unit = second_unit(float(passed[-1]))
    passed /= factor
    middle = float(passed[simulation.peak_run : simulation.peak_run + 2].mean())
    return passed[[*starts.tolist(), simulation.num_runs]], f"time [{unit}]", middle


def draw_pareto(curves: Sequence[ParetoCurve], *, axes: Axes | None = None) -> Figure:
    """Overhead against budget: curves as steps, plans of single planners as points.

    Exact curves are bare steps. Curves found by a search have a marker at each point, filled where
    the point is proven optimal; a dashed line shows the proven bound, and shading the gap between
    curve and bound. A ring marks the knee of the first curve (see
    `schedsim.plans.curves.find_knee`), a dotted line its proven least memory. Axes with a wide
    range are logarithmic.
    """
    figure, axes = canvas(axes)
    largest = max(point.budget_bytes for curve in curves for point in curve.points)
    factor, unit = byte_unit(largest)
    for number, curve in enumerate(curves):
        budgets = [point.budget_bytes / factor for point in curve.points]
        overheads = [100 * point.overhead for point in curve.points]
        colour, marker = _LINES[number % len(_LINES)]
        if curve.exact:
            label = f"optimal over {curve.scope}"
            axes.step(budgets, overheads, where="post", color=colour, label=label)
        elif curve.bounds:
            label = f"{curve.planner} ({curve.scope})"
            axes.step(budgets, overheads, where="post", color=colour, linewidth=1.2)
            _draw_marks(axes, curve, factor, colour, marker, label)
            _draw_bound(axes, curve, factor)
        else:
            axes.plot(
                budgets,
                overheads,
                marker,
                markersize=5,
                color=colour,
                label=curve.planner,
                clip_on=False,  # points on the axis (nothing recomputed) are drawn whole
            )
    _draw_knee(axes, curves[0], factor, unit)
    axes.set(
        title=plain(curves[0].workload_name),
        xlabel=f"budget [{unit}]",
        ylabel="time over store-all [%]",
    )
    axes.set_ylim(bottom=0)
    points = [point for curve in curves for point in curve.points]
    if min(point.budget_bytes for point in points) * _LOG_FROM < largest:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if max(point.overhead for point in points) > _LOG_OVERHEAD:
        axes.set_yscale("symlog", linthresh=10)  # in percent; linear near zero
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(top=150 * max(point.overhead for point in points))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _draw_marks(
    axes: Axes, curve: ParetoCurve, factor: float, colour: str, marker: str, label: str
) -> None:
    """A marker at each point, filled where it is proven optimal."""
    for exact, face in ((False, "white"), (True, colour)):
        points = [point for point in curve.points if point.exact == exact]
        if points:
            axes.plot(
                [point.budget_bytes / factor for point in points],
                [100 * point.overhead for point in points],
                marker,
                markersize=4.5,
                color=colour,
                markerfacecolor=face,
                label=f"{label}, proven optimal" if exact else label,
                clip_on=False,
                zorder=3,
            )


def _draw_bound(axes: Axes, curve: ParetoCurve, factor: float) -> None:
    """The bound beside a curve, and the shaded gap between them."""
    last = curve.points[-1].budget_bytes
    steps = [step for step in curve.bounds if step.budget_bytes < last]
    x = [step.budget_bytes / factor for step in steps] + [last / factor]
    y = [100 * step.overhead for step in steps]
    y.append(100 * (curve.points[-1].lower_bound_s / curve.store_all_s - 1))
    if curve.least_memory_bytes is not None and curve.least_memory_bytes / factor < x[0]:
        x.insert(0, curve.least_memory_bytes / factor)
        y.insert(0, y[0])
    axes.step(x, y, where="pre", color="#555555", linestyle="--", linewidth=1, label="proven bound")
    budgets = np.array([point.budget_bytes / factor for point in curve.points])
    found = np.array([100 * point.overhead for point in curve.points])
    ticks = np.unique(np.concatenate([budgets, x]))
    ticks = ticks[ticks >= budgets[0]]
    # Between two ticks both are constant: the curve's value at the lower tick, the bound's at the
    # upper.
    above = found[np.searchsorted(budgets, ticks[:-1], side="right") - 1]
    under = np.array(y)[np.searchsorted(x, ticks[1:])]
    axes.stairs(above, ticks, baseline=under, fill=True, color="#999999", alpha=0.22, linewidth=0)
    if curve.least_memory_bytes is not None:
        axes.axvline(
            curve.least_memory_bytes / factor,
            color="#555555",
            linestyle=":",
            linewidth=1.2,
            label="proven least memory",
        )


def _draw_knee(axes: Axes, curve: ParetoCurve, factor: float, unit: str) -> None:
    """A ring round the knee, and its numbers."""
    knee = curve.knee
    if knee is None:
        return
    place = (knee.budget_bytes / factor, 100 * knee.overhead)
    axes.scatter(
        *place, s=90, facecolors="none", edgecolors="black", linewidths=1.2, zorder=4, label="knee"
    )
    axes.annotate(
        f"{place[0]:.3g} {unit}, {place[1]:+.2g} %",
        place,
        textcoords="offset points",
        xytext=(9, 9),
        fontsize=8,
    )


def draw_schedule(
    workload: Chain | Graph, simulation: Simulation, *, axes: Axes | None = None
) -> Figure:
    """A grid of stages (of ops, for a graph) against runs, coloured by what runs."""
    from matplotlib.patches import Patch

    figure, axes = canvas(axes)
    image = schedule_grid(workload, simulation)
    from matplotlib.colors import ListedColormap

    palette = ListedColormap(["white", *KINDS.values()])
    axes.imshow(
        image,
        aspect="auto",
        origin="lower",
        cmap=palette,
        vmin=0,
        vmax=len(KINDS),
        interpolation="nearest",
    )
    label = "stage" if isinstance(workload, Chain) else "op"
    axes.set(title=plain(workload.name), xlabel="op run", ylabel=label)
    handles: list[Any] = [
        Patch(color=colour, label=name)
        for number, (name, colour) in enumerate(KINDS.items(), start=1)
        if (image == number).any()
    ]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8
    )
    return figure


def schedule_grid(workload: Chain | Graph, simulation: Simulation) -> NDArray[np.uint8]:
    """The grid that `draw_schedule` shows: 0 nothing, 1 forward, 2 recomputed, 3 loss, 4 backward.

    Returns
    -------
    (num_rows, num_runs) uint8
        A row per stage of a chain (the loss is in the last row), or per op of a graph.
    """
    runs = simulation.schedule.bind(workload)
    num_ops = len(workload.op_names)
    kind = simulation.run_kinds + 1
    rows = runs.astype(np.int64)
    if isinstance(workload, Chain):
        num = workload.num_stages
        rows = np.where(runs < num, runs, np.where(runs == num, num - 1, 2 * num - runs))
        num_ops = num
    grid = np.zeros((num_ops, runs.size), dtype=np.uint8)
    grid[rows, np.arange(runs.size)] = kind
    return grid
