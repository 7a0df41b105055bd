"""Figures from the results of a sweep: planners against budgets, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..sweeps.tables import Line, lines_of
from .plot import _LINES, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_ACROSS = 3
# Size of the first planner's marks and line, and how much smaller those of each next planner are:
# equal results lie inside each other, and all are seen.
_LARGEST_MARK, _WIDEST_LINE, _LEAST_OF_LARGEST = 9.0, 3.6, 0.35


def draw_results(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Overhead against budget, a panel for each workload, a line for each planner.

    With several seeds the line goes through the best, and a bar reaches up to the worst. A filled
    mark is proven optimal. Each planner's marks are smaller than those of the one before it, so
    that planners with the same plan are all seen.
    """
    labels, lines = lines_of(rows)
    figure, panels = _panels(lines)
    for (_, of_workload), axes in panels:
        for number, label in enumerate(labels):
            colour, marker = _LINES[number % len(_LINES)]
            scale = max(_LEAST_OF_LARGEST, 1 - number * 0.65 / max(1, len(labels) - 1))
            mark, width = scale * _LARGEST_MARK, scale * _WIDEST_LINE
            found = [
                (_share(line), line.cells[label])
                for line in of_workload
                if label in line.cells and line.cells[label].overheads
            ]
            if not found:
                continue
            shares = [share for share, _ in found]
            best = [100 * cell.overheads[0] for _, cell in found]
            worst = [100 * cell.overheads[-1] for _, cell in found]
            axes.step(shares, best, "-", where="post", color=colour, linewidth=width)
            axes.vlines(shares, best, worst, color=colour, linewidth=1)
            for optimal, face in ((True, colour), (False, "white")):
                at = [i for i, (_, cell) in enumerate(found) if cell.optimal == optimal]
                axes.plot(
                    [shares[i] for i in at],
                    [best[i] for i in at],
                    marker,
                    color=colour,
                    markerfacecolor=face,
                    markersize=mark,
                    clip_on=False,
                )
            axes.plot(
                [],
                [],
                marker + "-",
                color=colour,
                markersize=mark,
                linewidth=width,
                label=plain(label),
            )
    _legend(figure, [axes for _, axes in panels])
    return figure


def draw_best(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The best overhead that any planner found at each budget, and the best proven bound below."""
    _, lines = lines_of(rows)
    figure, panels = _panels(lines)
    for (_, of_workload), axes in panels:
        found = [line for line in of_workload if any(c.overheads for c in line.cells.values())]
        shares = [_share(line) for line in found]
        best = [
            100 * min(cell.overheads[0] for cell in line.cells.values() if cell.overheads)
            for line in found
        ]
        bound = [100 * line.lower_bound for line in found]
        axes.step(shares, best, "o-", where="post", color="#0072B2", markersize=5, label="best")
        # A bound at a larger budget holds at every smaller budget, too.
        axes.step(
            shares, bound, "--", where="pre", color="#555555", linewidth=1, label="proven bound"
        )
        for line in of_workload:
            if line not in found:
                axes.axvline(_share(line), color="#D55E00", linestyle=":", linewidth=1)
                axes.plot([], [], ":", color="#D55E00", label="nothing found")
    _legend(figure, [axes for _, axes in panels])
    return figure


def _share(line: Line) -> float:
    """The budget in percent of the store-all peak."""
    return 100 * line.budget_bytes / max(1, line.store_all_bytes)


def _panels(
    lines: Sequence[Line],
) -> tuple[Figure, list[tuple[tuple[str, list[Line]], Axes]]]:
    from matplotlib.figure import Figure

    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.workload, []).append(line)
    across = min(_MOST_ACROSS, len(groups))
    down = -(-len(groups) // across)
    figure = Figure(figsize=(4.2 * across, 0.4 + 3.4 * down))
    figure.subplots_adjust(wspace=0.3, hspace=0.5)
    grid = figure.subplots(down, across, squeeze=False)
    panels = list(zip(groups.items(), grid.flat, strict=False))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for (name, _), axes in panels:
        axes.set_title(plain(name), fontsize=9)
        axes.set(xlabel="budget [% of store-all peak]", ylabel="time over store-all [%]")
        axes.grid(alpha=0.3)
    return figure, panels


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    handles: dict[str, Any] = {}
    for axes in panels:
        axes.set_ylim(bottom=0)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    last = panels[min(len(panels), _MOST_ACROSS) - 1]
    last.legend(
        handles.values(),
        handles.keys(),
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
    )
