"""Figures: memory over time, overhead against budget, a schedule as a grid.

Every function returns a matplotlib ``Figure`` made without pyplot; ``axes`` draws into an existing
one instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .chain import Chain
from .curves import ParetoCurve
from .graph import Graph
from .simulator import CATEGORIES, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by all kinds of colour vision.
COLOURS = dict(
    zip(
        CATEGORIES,
        ("#999999", "#0072B2", "#56B4E9", "#D55E00", "#F0E442", "#009E73", "#CC79A7"),
        strict=True,
    )
)
KINDS = (
    ("forward", "#0072B2"),
    ("recomputed", "#E69F00"),
    ("loss", "#000000"),
    ("backward", "#D55E00"),
)
# Colour and marker of each curve, so that a planner is known without its colour too.
_LINES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#000000", "v"),
    ("#E69F00", "P"),
    ("#56B4E9", "X"),
)


def _canvas(axes: Axes | None, width: float = 8.0) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    if axes is not None:
        owner = axes.get_figure(root=True)
        assert isinstance(owner, Figure)
        return owner, axes

    figure = Figure(figsize=(width, 4.2))
    return figure, figure.subplots()


def _unit(largest: int) -> tuple[float, str]:
    for factor, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, name
    return 1.0, "B"


def draw_timeline(
    simulation: Simulation, *, budget_bytes: int | None = None, axes: Axes | None = None
) -> Figure:
    """Live bytes by category during each run, stacked, with the peak and the budget marked.

    The categories add up to ``simulation.memory_bytes`` at every run.
    """
    figure, axes = _canvas(axes)
    factor, unit = _unit(max(simulation.peak_bytes, budget_bytes or 0))
    edges = np.arange(simulation.num_runs + 1)
    below = np.zeros(simulation.num_runs)
    for name, row in simulation.timeline.items():
        if row.any():
            above = below + row / factor
            axes.stairs(above, edges, baseline=below, fill=True, color=COLOURS[name], label=name)
            below = above
    peak = simulation.peak_bytes / factor
    axes.plot([simulation.peak_run + 0.5], [peak], "kv", markersize=5)
    axes.annotate(
        f"peak {peak:.3g} {unit} ({simulation.peak_op})",
        (simulation.peak_run + 0.5, peak),
        textcoords="offset points",
        xytext=(0, 6),
        ha="center",
        fontsize=8,
    )
    if budget_bytes is not None:
        axes.axhline(budget_bytes / factor, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            "budget",
            (0, budget_bytes / factor),
            textcoords="offset points",
            xytext=(4, 4),
            fontsize=8,
        )
    axes.set(
        title=f"{simulation.workload_name}: {simulation.overhead:+.1%} time",
        xlabel="op run",
        ylabel=f"live memory [{unit}]",
        xlim=(0, simulation.num_runs),
    )
    axes.set_ylim(bottom=0, top=1.12 * max(peak, (budget_bytes or 0) / factor) or 1)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return figure


def draw_pareto(curves: Sequence[ParetoCurve], *, axes: Axes | None = None) -> Figure:
    """Overhead against budget: exact curves as steps, sampled ones as points."""
    figure, axes = _canvas(axes)
    largest = max(point.budget_bytes for curve in curves for point in curve.points)
    factor, unit = _unit(largest)
    for number, curve in enumerate(curves):
        budgets = [point.budget_bytes / factor for point in curve.points]
        overheads = [100 * point.overhead for point in curve.points]
        colour, marker = _LINES[number % len(_LINES)]
        if curve.exact:
            label = f"optimal over {curve.scope}"
            axes.step(budgets, overheads, where="post", color=colour, label=label)
        else:
            axes.plot(
                budgets,
                overheads,
                marker,
                markersize=5,
                color=colour,
                label=curve.planner,
                clip_on=False,  # points on the axis, where nothing is recomputed, stay whole
            )
    axes.set(
        title=curves[0].workload_name,
        xlabel=f"budget [{unit}]",
        ylabel="time over store-all [%]",
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def draw_schedule(
    workload: Chain | Graph, simulation: Simulation, *, axes: Axes | None = None
) -> Figure:
    """A grid of stages (of ops, for a graph) against runs, coloured by what runs."""
    from matplotlib.patches import Patch

    figure, axes = _canvas(axes)
    image = schedule_grid(workload, simulation)
    from matplotlib.colors import ListedColormap

    palette = ListedColormap(["white", *(colour for _, colour in KINDS)])
    axes.imshow(
        image, aspect="auto", origin="lower", cmap=palette, vmin=0, vmax=4, interpolation="nearest"
    )
    label = "stage" if isinstance(workload, Chain) else "op"
    axes.set(title=workload.name, xlabel="op run", ylabel=label)
    handles: list[Any] = [Patch(color=colour, label=name) for name, colour in KINDS]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8
    )
    return figure


def schedule_grid(workload: Chain | Graph, simulation: Simulation) -> np.ndarray[Any, Any]:
    """What `draw_schedule` shows: 0 nothing, 1 forward, 2 recomputed, 3 loss, 4 backward.

    Returns
    -------
    (num_rows, num_runs) uint8
        A row per stage of a chain (the loss on the last), per op of a graph.
    """
    runs = simulation.schedule.bind(workload)
    num_ops = len(workload.op_names)
    phase = workload.graph.arrays.op_phase[runs]
    first = np.zeros(runs.size, dtype=bool)
    first[np.unique(runs, return_index=True)[1]] = True
    kind = np.where(phase == 0, np.where(first, 1, 2), np.where(phase == 1, 3, 4))
    rows = runs.astype(np.int64)
    if isinstance(workload, Chain):
        num = workload.num_stages
        rows = np.where(runs < num, runs, np.where(runs == num, num - 1, 2 * num - runs))
        num_ops = num
    grid = np.zeros((num_ops, runs.size), dtype=np.uint8)
    grid[rows, np.arange(runs.size)] = kind
    return grid
