"""Numbers and files that nobody means are refused in one line, and good files are kept."""

from __future__ import annotations

import json

import pytest

import schedsim
from schedsim import Chain, SchedsimError
from schedsim.cli.app import run

CHAIN = Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
SWEEP = """
workloads = ["chain.json"]
budgets = ["60%", "100%"]
planners = ["rotor"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the chain in it."""
    monkeypatch.chdir(tmp_path)
    schedsim.save(CHAIN, "chain.json")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "plan chain.json --mem 60 --time-limit nan",
        "plan chain.json --mem 60 --time-limit inf",
        "plan chain.json --mem 60 --gap inf",
        "plan chain.json --mem 60 --gap nan",
        "plan chain.json --mem 1" + "0" * 30,
        "compare chain.json --mem 60 --time-limit nan",
        "plan chain.json --mem 60 --planner hrevolve --memory-level " + "9" * 20 + ":1:1",
        "plan chain.json --mem 60 --planner hrevolve --memory-level " + "9" * 5000 + ":1:1",
    ],
)
def test_odd_numbers_are_refused(folder, capsys, arguments):
    """Exit code 2, one error and one hint; nothing is a bug of ours."""
    assert run(arguments.split()) == 2
    err = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in err] == ["error", "hint"]
    assert all(len(line) < 300 for line in err)


@pytest.mark.parametrize(
    "call",
    [
        lambda: schedsim.plan(CHAIN, 10**30),
        lambda: schedsim.plan(CHAIN, 60, time_limit_s=float("nan")),
        lambda: schedsim.plan(CHAIN, 60, gap=float("inf")),
        lambda: schedsim.plan(CHAIN, 60, gap=-0.5),
        lambda: schedsim.pareto(CHAIN.graph, time_limit_s=float("inf")),
    ],
)
def test_odd_numbers_are_refused_in_python(call):
    """With the same errors."""
    with pytest.raises(SchedsimError):
        call()


def test_an_infeasible_plan_is_not_written_over_a_good_one(folder, capsys):
    """The file keeps its plan, and the command says so; in the place of no plan it is written."""
    assert run(["plan", "chain.json", "--mem", "80", "-o", "plan.json"]) == 0
    good = (folder / "plan.json").read_text()
    assert run(["plan", "chain.json", "--mem", "5", "-o", "plan.json"]) == 1
    assert (folder / "plan.json").read_text() == good
    assert "plan.json is kept as it was" in capsys.readouterr().err
    assert run(["plan", "chain.json", "--mem", "5", "-o", "new.json"]) == 1
    assert not schedsim.load("new.json").feasible
    assert run(["plan", "chain.json", "--mem", "6", "-o", "new.json"]) == 1
    assert schedsim.load("new.json").budget_bytes == 6


@pytest.mark.parametrize("field", ["status", "budget_bytes", "options", "overhead"])
@pytest.mark.parametrize("value", [None, "NaN", True])
def test_rows_that_are_no_results(folder, capsys, field, value):
    """A results file that was edited: its row and field are named, by both readers."""
    (folder / "sweep.toml").write_text(SWEEP)
    assert run(["sweep", "sweep.toml", "-o", "r.jsonl"]) == 0
    lines = (folder / "r.jsonl").read_text().splitlines()
    row = json.loads(lines[0])
    row.pop(field) if value is None else row.update({field: value})
    lines[0] = json.dumps(row)
    (folder / "r.jsonl").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    for command in ("compare r.jsonl", "sweep sweep.toml -o r.jsonl"):
        assert run(command.split()) == 2
        err = capsys.readouterr().err.splitlines()
        assert f"row 1 is no result of a sweep: {field}" in err[-2]


def test_a_sweep_sees_that_variants_have_changed():
    """With variants allowed they decide the result; without, the same plan is found again."""
    from dataclasses import replace

    from schedsim.dataflow.variants import StageVariant
    from schedsim.sweeps.runs import run_key

    variant = StageVariant("small", "quantize", saved_bytes=8)
    stages = (replace(CHAIN.stages[0], variants=(variant,)), *CHAIN.stages[1:])
    changed = replace(CHAIN, stages=stages)
    allowed = {"allow": ["quantize"]}
    assert run_key(CHAIN, 60, "frontier", allowed, None) != run_key(
        changed, 60, "frontier", allowed, None
    )
    assert run_key(CHAIN, 60, "frontier", {}, None) == run_key(changed, 60, "frontier", {}, None)


def test_the_exit_codes_are_listed(capsys):
    """The code for bugs, too."""
    run(["--help"])
    assert "70 a bug" in " ".join(capsys.readouterr().out.split())
