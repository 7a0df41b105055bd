"""Rows of a sweep as lines and columns."""

from __future__ import annotations

from sweep_rows import row

from schedsim.sweeps.tables import lines_of, planner_labels


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
