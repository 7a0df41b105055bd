"""``schedsim compare``: a row for each planner, and why some have none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from four_stages import CHAIN

import schedsim.cli.compare
from schedsim.cli.app import run
from schedsim.errors import PlannerLimitError
from schedsim.files.document import save
from schedsim.plans.search import SearchRecord


@pytest.fixture
def chain_file(tmp_path) -> str:
    file = tmp_path / "chain.json"
    save(CHAIN, file)
    return str(file)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_compare_rows(call, chain_file):
    """A row per planner; infeasible ones say what they need."""
    code, out, _ = call("compare", chain_file, "--mem", "60")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line and line[0].isalpha()}
    assert "needs" in rows["store_all"]
    assert "optimal" in rows["rotor"]
    code, out, _ = call("compare", chain_file, "--mem", "60", "--planners", "rotor", "--json")
    assert [row["planner"] for row in json.loads(out)["rows"]] == ["rotor"]
    assert call("compare", chain_file, "--mem", "1")[0] == 1


def test_a_row_is_the_planners_own_plan(call, chain_file, tmp_path):
    """In the document; gaps in the table are to the best bound that any of them proves."""
    file = tmp_path / "rows.json"
    line = ("compare", chain_file, "--mem", "60", "--planners", "periodic,rotor")
    code, out, _ = call(*line, "--json", "-o", str(file))
    document = json.loads(out)
    assert (code, document) == (0, json.loads(file.read_text()))
    for row in document["rows"]:
        plan = schedsim.api.try_plan(CHAIN, 60, row["planner"])
        assert (row["peak_bytes"], row["makespan_s"]) == (plan.peak_bytes, plan.makespan_s)
    assert document["budget_bytes"] == 60
    _, out, _ = call(*line)
    times = {row["planner"]: row["makespan_s"] for row in document["rows"]}
    gap = f"{times['periodic'] / times['rotor'] - 1:.2%}".replace("%", " %")
    (periodic,) = [row for row in out.splitlines() if row.startswith("periodic")]
    assert gap in periodic
    assert "gap: to the best bound of these, proven over persistent schedules" in out


def test_a_planner_that_cannot_is_said_beside_the_table(call, chain_file, monkeypatch):
    """One that is too large for it; the others have their rows, and the exit code is theirs."""
    planned = schedsim.cli.compare.try_plan

    def limited(workload, budget, planner, **options):
        if planner == "rotor":
            raise PlannerLimitError("rotor is for fewer stages", hint="leave it out")
        return planned(workload, budget, planner, **options)

    monkeypatch.setattr(schedsim.cli.compare, "try_plan", limited)
    line = ("compare", chain_file, "--mem", "100%", "--planners", "rotor,store_all")
    code, out, err = call(*line)
    assert code == 0
    assert [row.split()[0] for row in out.splitlines()[3:5]] == ["planner", "store_all"]
    assert err == "rotor: rotor is for fewer stages\n"
    document = json.loads(call(*line, "--json")[1])
    assert document["refused"] == {"rotor": "rotor is for fewer stages"}
    assert [row["planner"] for row in document["rows"]] == ["store_all"]


def test_half_a_search_is_no_row(call, chain_file, monkeypatch):
    """An interrupt ends the comparison, though the planner answered with its best."""
    planned = schedsim.cli.compare.try_plan

    def interrupted(*arguments, **options):
        plan = planned(*arguments, **options)
        return replace(plan, search=SearchRecord(ended_by="interrupt"))

    monkeypatch.setattr(schedsim.cli.compare, "try_plan", interrupted)
    code, out, err = call("compare", chain_file, "--mem", "60", "--planners", "rotor")
    assert (code, out) == (130, "")
    assert "interrupted" in err


def test_limits_go_only_to_those_that_take_them(call, chain_file, monkeypatch):
    """The default effort where neither limit is given; a link to those that offload."""
    seen = {}
    planned = schedsim.cli.compare.try_plan

    def recorded(workload, budget, planner, **options):
        seen[planner] = options
        return planned(workload, budget, "store_all")

    monkeypatch.setattr(schedsim.cli.compare, "try_plan", recorded)
    call(
        "compare", chain_file, "--mem", "100", "--planners", "store_all,offload", "--link", "1GB/s"
    )
    assert seen["store_all"] == {}
    assert seen["offload"] == {"effort": 20.0, "link": "1GB/s"}
    call("compare", chain_file, "--mem", "100", "--planners", "auto", "--time-limit", "3")
    assert seen["auto"] == {"time_limit_s": 3.0}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--planners", "rotor,nobody"], "unknown planner 'nobody'"),
        (["--planners", "rotor", "--link", "1GB/s"], "none of --planners rotor takes --link"),
        (["--effort", "-1"], "--effort"),
        (["--host-mem", "1GB"], "--host-mem needs a link"),
    ],
)
def test_refused_before_anything_is_planned(call, chain_file, monkeypatch, more, says):
    """Exit 2, one error and one hint."""
    monkeypatch.setattr(schedsim.cli.compare, "try_plan", pytest.fail)
    code, out, err = call("compare", chain_file, "--mem", "60", *more)
    assert (code, out) == (2, "")
    assert says in err
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "hint"]
