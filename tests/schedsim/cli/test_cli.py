"""The command line: exit codes, what goes where, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_graphs import unit_training_chain

import schedsim
from schedsim.cli.app import COMMANDS, run
from schedsim.cli.options.formula import check_fields
from schedsim.files.document import save

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


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


def test_the_best_known_line(call):
    """96 layers in 8 GB: feasible, the assumption first, both units, a proof, what to do next."""
    code, out, err = call("plan", "--layers", "96", "--mem", "8GB")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("96 layers of gpt3-175b, micro-batch 1, sequence 2048, fp16")
    assert "8.00 GB (7.45 GiB)" in out
    assert "optimal" in out
    assert "persistent schedules" in out
    assert "\nnext\n" in out
    assert "\x1b" not in out


def test_json_is_one_document(call):
    """Narration goes to stderr; the document is the plan file."""
    code, out, err = call("plan", "--layers", "8", "--mem", "8GB", "--json")
    plan = json.loads(out)
    assert (code, plan["schema"], plan["status"]) == (0, "schedsim.plan/2", "optimal")
    assert "8 layers of gpt3-175b" in err


def test_infeasible_says_what_would_do(call):
    """Exit 1, the least budget, the op that sets it, and changes with computed numbers."""
    code, _, err = call("plan", "--layers", "4", "--mem", "1GB")
    assert code == 1
    assert "error: gpt3-175b does not fit in 1.00 GB" in err
    assert "hint: the proven least budget is" in err
    assert "(layer" in err
    assert "--attention flash" in err
    assert "--tensor-parallel 8" in err


def test_infeasible_json_is_the_plan(call, chain_file):
    """Scripts get the infeasible plan, with the least budget in it."""
    code, out, _ = call("plan", chain_file, "--mem", "10", "--json")
    plan = json.loads(out)
    assert (code, plan["status"], plan["schedule"]) == (1, "infeasible", None)
    again, _, _ = call("plan", chain_file, "--mem", str(plan["min_feasible_bytes"]))
    assert again == 0


def test_plan_then_simulate(call, chain_file, tmp_path):
    """The plan's file replays to what it says; another workload is refused with exit 1."""
    file = str(tmp_path / "plan.json")
    assert call("plan", chain_file, "--mem", "60", "-o", file)[0] == 0
    code, out, _ = call("simulate", chain_file, file, "--json")
    assert code == 0
    assert json.loads(out)["peak_bytes"] == json.loads(Path(file).read_text())["peak_bytes"]
    code, _, err = call("simulate", "--layers", "4", file)
    assert code == 1
    assert "another workload" in err


def test_a_plan_that_lies_is_caught(call, chain_file, tmp_path):
    """A changed peak in the file does not pass the replay."""
    file = tmp_path / "plan.json"
    call("plan", chain_file, "--mem", "60", "-o", str(file))
    document = json.loads(file.read_text())
    document["peak_bytes"] -= 1
    file.write_text(json.dumps(document))
    code, _, err = call("simulate", chain_file, str(file))
    assert code == 1
    assert "the plan says peak" in err


def test_a_schedule_from_a_file(call, chain_file, tmp_path):
    """Op names replay; an illegal one is exit 1 with its place; over --mem is exit 1."""
    names = tmp_path / "names.txt"
    names.write_text("F0 F1 F2 F3 loss B3 B2 B1 B0")
    assert call("simulate", chain_file, "--schedule", str(names))[0] == 0
    assert call("simulate", chain_file, "--schedule", str(names), "--mem", "50")[0] == 1
    names.write_text("F0 F2")
    code, _, err = call("simulate", chain_file, "--schedule", str(names))
    assert code == 1
    assert "schedule[1]" in err


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--layers", "4", "--mem", "8G"], "8GB (powers of 1000)"),
        (["plan", "--layers", "4"], "--mem"),
        (["plan", "--mem", "8GB"], "no workload"),
        (["plan", "--layers", "x", "--mem", "8GB"], "--layers"),
        (["plan", "--layers", "4", "--mem", "8GB", "--planner", "roter"], "'rotor'"),
        (["plan", "--layers", "4", "--mem", "8GB", "--planner", "periodic", "--gap", "1"], "--gap"),
        (["plan", "--layers", "4", "--mem", "8GB", "--time-limit", "-1"], "--time-limit"),
        (
            ["plan", "--layers", "4", "--mem", "8GB", "-o", "no/such/folder/p.json"],
            "no/such/folder",
        ),
        (["plan", "nothing.json", "--mem", "8GB"], "nothing.json"),
        (["plan", "model.py:build", "--mem", "8GB"], "model.py:build"),
        (["plann"], "'plan'"),
        (["plan", "--layer", "4", "--mem", "8GB"], "--layer"),
        (["plot", "timeline", "--layers", "4", "-o", "x.gif"], ".svg"),
        (["compare", "--layers", "4", "--mem", "8GB", "--planners", "rotor,,"], "empty name"),
    ],
)
def test_usage_errors(call, arguments, says):
    """Exit 2, one error line and at most one hint, nothing on stdout."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    lines = err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])


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


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
@pytest.mark.parametrize("kind", ["timeline", "schedule", "frontier"])
def test_plots_are_written(call, chain_file, tmp_path, kind, suffix):
    """Each picture in each format begins as that format does."""
    file = tmp_path / f"picture.{suffix}"
    budget = [] if kind == "frontier" else ["--mem", "60"]
    assert call("plot", kind, chain_file, *budget, "-o", str(file))[0] == 0
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(magic)


def test_tables_of_planners_and_environment(call):
    """As text and as JSON."""
    assert "rotor" in call("planners")[1]
    names = [row["name"] for row in json.loads(call("planners", "--json")[1])["planners"]]
    assert "frontier" in names
    assert json.loads(call("env", "--json")[1])["schedsim"]


def test_every_command_has_help_with_an_example(call):
    """And every workload field has an option."""
    for command in COMMANDS:
        code, out, _ = call(command, "--help")
        assert code == 0
        assert f"schedsim {command}" in out
    assert check_fields() == []


def test_options_of_plan_are_frozen(call):
    """Scripts depend on these names."""
    out = call("plan", "--help")[1]
    for option in (
        "--mem", "--planner", "--gap", "--time-limit", "--slots", "--json", "--output", "--preset",
        "--layers", "--hidden", "--heads", "--seq", "--batch", "--dtype", "--attention",
        "--granularity", "--tensor-parallel", "--sequence-parallel", "--data-parallel", "--zero",
        "--optimizer", "--static", "--device", "--efficiency", "--times", "--synthetic", "--seed",
        "--head",
    ):  # fmt: skip
        assert option in out


def test_a_closed_pipe_is_quiet():
    """`schedsim planners | head -1` prints no traceback."""
    command = f"{sys.executable} -m schedsim planners | head -1"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.stderr == ""


def test_an_internal_fault_is_one_line(monkeypatch, call):
    """Exit 70 and how to see more, unless a traceback is asked for."""
    monkeypatch.setattr("schedsim.cli.env.platform.system", lambda: 1 / 0)
    code, _, err = call("env")
    assert code == 70
    assert "SCHEDSIM_DEBUG" in err
    monkeypatch.setitem(os.environ, "SCHEDSIM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["env"])


@pytest.mark.parametrize("suffix", ["svg", "png", "json"])
def test_the_frontier_of_a_graph_is_written(call, tmp_path, suffix):
    """With a time limit, as picture and as numbers."""
    file, graph = tmp_path / f"frontier.{suffix}", tmp_path / "graph.json"
    schedsim.save(unit_training_chain(8), graph)
    options = ["--order", "free", "--time-limit", "0.5", "--points", "5"]
    assert call("plot", "frontier", str(graph), *options, "-o", str(file))[0] == 0
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "json": b"{"}[suffix]
    assert file.read_bytes().startswith(magic)
    if suffix == "json":
        assert len(json.loads(file.read_text())["points"]) > 1
