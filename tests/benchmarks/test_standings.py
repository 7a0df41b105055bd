"""The table and the figure of all planners over the library."""

import json

import pytest
from rematlib import FOLDER, script

check, standings = script("check"), script("standings")
ROWS = [json.loads(line) for line in (FOLDER / "standings.jsonl").read_text().splitlines()]


def test_the_page_is_that_of_the_rows(tmp_path):
    standings.page(ROWS, tmp_path)
    assert (tmp_path / "standings.md").read_text() == (FOLDER / "standings.md").read_text()
    assert (tmp_path / "standings.svg").stat().st_size > 1000


def test_no_row_is_faster_than_a_proven_bound():
    index = {row["name"]: row for row in check.read(FOLDER / "index.json")["instances"]}
    for row in ROWS:
        [best] = {
            one["bound_s"]: one
            for one in index[row["instance"]]["best"]
            if one["budget_bytes"] == row["budget_bytes"]
        }.values()
        if row["makespan_s"] is not None and best["bound_s"] is not None:
            in_scope = best["scope"] != check.PERSISTENT or row["planner"] != "bisection"
            if in_scope:
                assert row["makespan_s"] >= check.rational(best["bound_s"])


def test_shares_count_what_was_not_found_as_not_solved():
    values = [1.0, 1.0005, 1.04, None]
    assert [standings.share_within(values, level) for level in (0.0, 0.001, 0.05)] == [
        0.25,
        0.5,
        0.75,
    ]
    assert standings.share_within(values, float("inf")) == 0.75


def test_both_kinds_are_run_by_every_planner_that_takes_them():
    for kind, planners in (
        ("chain", standings.CHAIN_PLANNERS),
        ("graph", standings.GRAPH_PLANNERS),
    ):
        found = standings.ratios(ROWS, kind)
        assert list(found) == list(planners)
        assert len({len(values) for values in found.values()}) == 1
        for name, values in found.items():
            assert any(value is not None for value in values), name


def test_an_instance_becomes_an_experiment(monkeypatch):
    rows = check.read(FOLDER / "index.json")["instances"]
    row = next(row for row in rows if row["name"] == "uniform-chain-4-1-0")
    monkeypatch.setattr(standings, "CHAIN_PLANNERS", ("frontier", "revolve"))
    found = standings.sweep(row, 0.1)
    assert [one["planner"] for one in found] == ["frontier", "revolve"] * 4
    assert found[0]["makespan_s"] == pytest.approx(float(row["best"][1]["makespan_s"]))
