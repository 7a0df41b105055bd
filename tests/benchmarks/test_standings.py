"""The table and the figure of all planners over the library."""

import json
import tomllib

import pytest
from rematlib import FOLDER, script

from schedsim.api import planner_takes

check, standings = script("check"), script("standings")
ROWS = [json.loads(line) for line in (FOLDER / "standings.jsonl").read_text().splitlines()]


def test_the_page_is_that_of_the_rows(tmp_path):
    standings.page(ROWS, tmp_path)
    assert (tmp_path / "standings.md").read_text() == (FOLDER / "standings.md").read_text()
    assert (tmp_path / "standings.svg").stat().st_size > 1000


def test_no_row_is_faster_than_the_best_known():
    """What a planner finds for the table is handed in to the library too."""
    known = {
        (row["name"], one["budget_bytes"]): one.get("any_schedule", one)
        for row in check.read(FOLDER / "index.json")["instances"]
        for one in row["best"]
    }
    for row in ROWS:
        best = known[row["instance"], row["budget_bytes"]]
        if row.get("makespan_s") is not None:
            assert row["makespan_s"] >= check.rational(best["makespan_s"]), row
            if best["bound_s"] is not None:
                assert row["makespan_s"] >= check.rational(best["bound_s"]), row


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
    assert found[0]["makespan_s"] > float(row["best"][1]["any_schedule"]["makespan_s"])
    assert {one["ended_by"] for one in found} == {"itself"}


def test_an_instance_beyond_a_planner_is_skipped_with_the_reason(monkeypatch):
    rows = check.read(FOLDER / "index.json")["instances"]
    row = next(row for row in rows if row["name"] == "unit-line-6-0")
    monkeypatch.setattr(standings, "GRAPH_PLANNERS", ("dtr", "checkmate"))
    monkeypatch.setattr(standings, "MOST_OPS", {"checkmate": row["num_ops"] - 1})
    found = standings.sweep(row, 0.1)
    assert [one["planner"] for one in found] == ["dtr"] * 4 + ["checkmate"] * 4
    assert all(
        one["status"] == "skipped" and "ops, run up to" in one["reason"] for one in found[4:]
    )
    monkeypatch.setattr(standings, "MOST_OPS", {"checkmate": row["num_ops"]})
    assert not standings.skipped(row)


def test_a_search_is_given_work_and_no_clock_but_a_watchdog():
    rows = check.read(FOLDER / "index.json")["instances"]
    for row in (rows[0], rows[-1]):
        text = standings.experiment(row, 0.25)
        planners = tomllib.loads(text)["planners"]
        assert planners
        for one in planners:
            takes = planner_takes(one["name"])[1]
            assert one.get("effort") == (0.25 if "effort" in takes else None)
            assert "max_moves" not in one


def test_a_run_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    kept = tmp_path / "standings.jsonl"
    names, tried = ["unit-line-6-0", "uniform-chain-4-1-0"], []
    monkeypatch.setattr(standings, "ROWS", kept)

    def sweep(row, effort):
        if len(tried) == 1 and tried[0] != row["name"]:
            tried.append("interrupted")
            raise KeyboardInterrupt
        tried.append(row["name"])
        return [{"instance": row["name"], "effort": effort, "planner": "dtr", "status": "optimal"}]

    monkeypatch.setattr(standings, "sweep", sweep)
    with pytest.raises(KeyboardInterrupt):
        standings.main(["run", *names])
    standings.main(["run", *names])
    standings.main(["run", *names])
    assert tried == [names[1], "interrupted", names[0]]
    kept_names = [json.loads(line)["instance"] for line in kept.read_text().splitlines()]
    assert kept_names == [names[1], names[0]]
