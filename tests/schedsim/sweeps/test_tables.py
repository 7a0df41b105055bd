"""Rows of a sweep as lines and columns."""

from __future__ import annotations

from typing import Any

from schedsim.figures.plot_results import draw_best, draw_results
from schedsim.sweeps.tables import lines_of, planner_labels


def row(planner: str, budget: int, overhead: float | None, **more: Any) -> dict[str, Any]:
    """A row on one workload of 10 s, with a bound of 11 s."""
    key = f"{planner}{budget}{overhead}{more}"
    return {
        "key": key,
        "workload": "w",
        "content_hash": "h",
        "budget": f"{budget}%",
        "budget_bytes": budget,
        "store_all_bytes": 100,
        "planner": planner,
        "options": {},
        "seed": None,
        "status": "infeasible" if overhead is None else "feasible",
        "overhead": overhead,
        "store_all_s": 10.0,
        "lower_bound_s": 11.0,
        "bound_scope": "any schedule",
        "min_feasible_bytes": 40,
        **more,
    }


def test_seeds_share_a_cell_and_budgets_ascend():
    """The least and most of the seeds; a budget where nothing fits says what is needed."""
    rows = [
        row("search", 80, 0.2, seed=1),
        row("search", 80, 0.15, seed=0, status="optimal"),
        row("search", 30, None),
        row("dtr", 80, 0.3),
    ]
    labels, lines = lines_of(rows)
    assert labels == ["search", "dtr"]
    assert [line.budget_bytes for line in lines] == [30, 80]
    assert lines[0].cells["search"].overheads == ()
    assert lines[0].cells["search"].min_feasible_bytes == 40
    assert lines[1].cells["search"].overheads == (0.15, 0.2)
    assert not lines[1].cells["search"].optimal
    assert abs(lines[1].lower_bound - 0.1) < 1e-12


def test_a_bound_names_its_class():
    """The one narrower class there is; with two of them, only what holds for any schedule."""
    narrow = row("frontier", 80, 0.3, bound_scope="persistent schedules", lower_bound_s=13.0)
    wide = row("periodic", 80, 0.4)
    other = row("x", 80, 0.3, bound_scope="fixed order", lower_bound_s=12.5)
    for rows, bound, scope in (
        ([narrow, wide], 0.3, "persistent schedules"),
        ([wide], 0.1, "any schedule"),
        ([narrow, other, wide], 0.1, "any schedule"),
        ([narrow, other], 0.0, "any schedule"),
    ):
        (line,) = lines_of(rows)[1]
        assert abs(line.lower_bound - bound) < 1e-12
        assert line.bound_scope == scope


def test_namesakes_are_told_apart_by_their_options():
    """But not by a limit that only one kind of workload takes."""
    rows = [
        row("auto", 1, 0.1, options={"time_limit_s": 9.0}),
        row("auto", 2, 0.1, options={"time_limit_s": 9.0, "max_moves": 5}),
        row("ls", 1, 0.1, options={"order": "free", "max_moves": 5}),
        row("ls", 2, 0.1, options={"order": "fixed", "max_moves": 6}),
    ]
    assert list(planner_labels(rows).values()) == [
        "auto",
        "auto",
        "ls order=free max_moves=5",
        "ls order=fixed max_moves=6",
    ]


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
