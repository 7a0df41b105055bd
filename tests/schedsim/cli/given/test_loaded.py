"""What the files and options of a command line hold, and what cannot stand together."""

from __future__ import annotations

from pathlib import Path

import pytest
from four_stages import CHAIN

import schedsim
from schedsim.cli.app import run
from schedsim.cli.given.loaded import given_schedule, need_torch, read, schedule_of
from schedsim.cli.given.workload_source import Source
from schedsim.cli.options.formula import no_options
from schedsim.errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    MissingDependencyError,
    SchedsimError,
)
from schedsim.files.document import save


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


def test_both_file_and_options_are_refused(call, chain_file):
    """One workload at a time."""
    code, _, err = call("plan", chain_file, "--layers", "3", "--mem", "8GB")
    assert code == 2
    assert "both" in err


def test_truncated_files_are_refused(call, tmp_path):
    """With the file's name, exit 2."""
    file = tmp_path / "cut.json"
    file.write_text('{"schema": "schedsim.chain/1", ')
    code, _, err = call("plan", str(file), "--mem", "8GB")
    assert code == 2
    assert "cut.json" in err


@pytest.fixture
def plan_file(folder) -> str:
    save(schedsim.plan(CHAIN, 60), "plan.json")
    return "plan.json"


def source(*files: str, level: str | None = None, **options) -> Source:
    return Source(files, no_options(options), level)


def test_a_workload_and_its_plan(plan_file):
    """In either order; the budget may be a share of the workload as given."""
    for files in (("chain.json", plan_file), (plan_file, "chain.json")):
        loaded = read(source(*files), plan=True)
        assert (loaded.workload, loaded.given) == (CHAIN, CHAIN)
        assert loaded.plan == schedsim.load(plan_file)
        assert loaded.assumptions == ("chain four from chain.json, 4 stages",)
        assert (loaded.budget_bytes("50%"), loaded.budget_bytes(7)) == (46, 7)
        assert loaded.label("B3") == "B3 (s3)"


def test_a_graph_and_a_formula_say_what_they_are(folder):
    """In a line or several."""
    save(CHAIN.graph, "graph.json")
    assert read(source("graph.json")).assumptions == ("graph four from graph.json, 9 ops",)
    loaded = read(source(layers=3, seq=16))
    assert loaded.workload.num_stages == 3
    assert loaded.assumptions[0].startswith("3 layers of gpt3-175b, micro-batch 1, sequence 16")
    assert loaded.plan is None


@pytest.mark.parametrize(
    ("files", "more", "plan", "says"),
    [
        ((), {}, False, "no workload"),
        (("chain.json", "chain.json"), {}, False, "chain.json is a second workload"),
        (("chain.json", "plan.json"), {}, False, "plan.json is a plan, not a workload"),
        (("chain.json", "plan.json", "again.json"), {}, True, "again.json is a second plan"),
        (("chain.json",), {"layers": 3}, False, "both a workload file and --layers"),
        (("chain.json",), {"level": "op"}, False, "--level op is for real models"),
        (("model:mlp", "hf:gpt2"), {}, False, "hf:gpt2 is a second workload"),
    ],
)
def test_what_cannot_stand_together(plan_file, files, more, plan, says):
    """One line, before anything is built."""
    Path("again.json").write_text(Path(plan_file).read_text())
    if files and files[0] == "model:mlp":
        pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(SchedsimError) as caught:
        read(source(*files, **more), plan=plan)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_plan_whose_numbers_are_not_those_of_its_schedule(plan_file):
    """Refused, unless the caller looks at them itself."""
    import json

    content = json.loads(Path(plan_file).read_text()) | {"peak_bytes": 59}
    Path(plan_file).write_text(json.dumps(content))
    with pytest.raises(InvalidScheduleError, match="the plan says peak 59"):
        read(source("chain.json", plan_file), plan=True)
    assert read(source("chain.json", plan_file), plan=True, check=False).plan.peak_bytes == 59


def test_a_schedule_of_a_plan_and_of_a_file(folder):
    """One that is not there is an infeasible budget, with what would do."""
    plan = schedsim.plan(CHAIN, 60)
    assert schedule_of(plan) is plan.schedule
    with pytest.raises(InfeasibleBudgetError, match="nothing fits 10 B") as caught:
        schedule_of(schedsim.api.try_plan(CHAIN, 10))
    assert "--mem" in caught.value.hint
    loaded = read(source("chain.json"))
    Path("runs.txt").write_text("F0\nF1  loss\tB1")
    assert given_schedule(loaded, "runs.txt").names == ["F0", "F1", "loss", "B1"]


def test_without_torch_a_model_is_one_line(monkeypatch):
    """With what to install."""
    monkeypatch.setattr("schedsim.cli.given.loaded.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError) as caught:
        need_torch()
    assert "schedsim[torch]" in caught.value.hint
