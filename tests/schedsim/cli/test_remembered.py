"""A plan file remembers its workload: nothing else is needed beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.files import document

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    document.save(CHAIN, "chain.json")
    return tmp_path


def planned(*workload: str) -> None:
    assert run(["plan", *workload, "-o", "plan.json"]) == 0


@pytest.mark.parametrize(
    "workload", [("chain.json", "--mem", "60"), ("--layers", "8", "--mem", "8GB")]
)
@pytest.mark.parametrize(
    "command",
    [
        ("simulate",),
        ("explain",),
        ("plot", "timeline", "-o", "t.svg"),
        ("export", "--to", "torch"),
        ("report", "-o", "r.html"),
    ],
    ids=lambda command: command[0],
)
def test_a_plan_file_alone_is_enough(folder, workload, command, capsys):
    """The plan of a workload file, and of a formula, for every command that reads plans."""
    planned(*workload)
    assert run([*command, "plan.json"]) == 0, capsys.readouterr().err


def test_the_same_formula_beside_it_is_taken_another_is_refused(folder, capsys):
    """The refusal names the option, both values and the remedy."""
    planned("--layers", "8", "--mem", "8GB")
    assert run(["simulate", "--layers", "8", "plan.json"]) == 0
    assert run(["simulate", "--layers", "9", "--batch", "2", "plan.json"]) == 2
    error = capsys.readouterr().err
    assert "--layers is 9, in the plan 8" in error
    assert "--batch is 2, in the plan not given" in error
    assert "leave these options out" in error


def test_the_file_is_found_beside_the_plan(folder, capsys):
    """A folder that was moved as a whole still works from elsewhere."""
    planned("chain.json", "--mem", "60")
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    assert run(["simulate", "../plan.json"]) == 0
    (folder / "chain.json").unlink()
    assert run(["simulate", "../plan.json"]) == 2
    assert "chain.json, which is not there" in capsys.readouterr().err


def test_a_file_that_changed_is_refused(folder, capsys):
    """Its hash is not the plan's."""
    planned("chain.json", "--mem", "60")
    document.save(schedsim.Chain("four", 8, CHAIN.stages), "chain.json")
    assert run(["simulate", "plan.json"]) == 1
    assert "another workload" in capsys.readouterr().err


def test_a_plan_made_in_python_says_that_it_does_not_know(folder, capsys):
    """One line with the remedy."""
    document.save(schedsim.plan(CHAIN, 60), "plan.json")
    assert run(["simulate", "plan.json"]) == 2
    assert "does not say where its workload" in capsys.readouterr().err
    assert run(["simulate", "chain.json", "plan.json"]) == 0


@pytest.mark.parametrize(
    "command",
    [
        ("explain",),
        ("plot", "timeline", "-o", "t.svg"),
        ("export", "--to", "torch"),
        ("report", "-o", "r.html"),
    ],
    ids=lambda c: c[0],
)
def test_every_reader_refuses_a_doctored_plan(folder, command, capsys):
    """As `simulate` does: the peak in the file is not that of its schedule."""
    planned("chain.json", "--mem", "60")
    content = json.loads(Path("plan.json").read_text())
    content["peak_bytes"] -= 1
    Path("plan.json").write_text(json.dumps(content))
    assert run([*command, "plan.json"]) in (1, 2)
    assert "the plan says peak" in capsys.readouterr().err


def test_the_largest_is_remembered_at_the_size_that_was_found(folder, capsys):
    """What ``--maximize`` writes is replayed alone, with the size among its options."""
    mem = ["--mem", "16GB", "--maximize", "batch", "-o", "plan.json", "--planner", "rotor"]
    assert run(["plan", "--layers", "2", *mem]) == 0
    plan = json.loads(Path("plan.json").read_text())
    size = plan["workload"]["source"]["options"]["batch"]
    assert size > 1
    assert run(["simulate", "plan.json"]) == 0
    assert run(["simulate", "plan.json", "--layers", "2", "--batch", str(size + 1)]) == 2


def test_a_pipeline_plan_is_replayed_alone(folder, capsys):
    """With its workload, its link and its partition; options beside it must agree."""
    made = ["pipeline", "--layers", "4", "--stages", "2", "--micro-batches", "4", "--link", "9GB/s"]
    assert run([*made, "-o", "plan.json", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert run(["pipeline", "--replay", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == step
    for other in (
        ["--link", "1GB/s"],
        ["--schedule", "gpipe"],
        ["--layers", "5"],
        ["--chunks", "3"],
    ):
        assert run(["pipeline", "--replay", "plan.json", *other]) == 2, other
        assert "hint: leave" in capsys.readouterr().err


def test_a_doctored_pipeline_plan_is_neither_replayed_nor_drawn(folder, capsys):
    """Its peak is not that of its step: exit 1, and no picture."""
    made = ["pipeline", "--layers", "4", "--stages", "2", "--micro-batches", "4"]
    assert run([*made, "-o", "plan.json"]) == 0
    document = json.loads(Path("plan.json").read_text())
    document["step"]["peak_bytes"] += 1
    Path("plan.json").write_text(json.dumps(document))
    assert run(["pipeline", "--replay", "plan.json"]) == 1
    assert run(["plot", "pipeline", "--replay", "plan.json", "-o", "p.svg"]) == 1
    assert "the plan says peak" in capsys.readouterr().err
    assert not Path("p.svg").exists()


MODEL = """
import torch


def build():
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU()) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.Linear(64, 16), layers[1])
    return model, (torch.randn(8, 16),), lambda y: y.square().mean()
"""


@pytest.mark.parametrize("level", ["block", "op"])
def test_a_plan_of_a_model_carries_what_was_captured(folder, level, capsys):
    """It is read again without the model, whose times no two measurements agree on."""
    pytest.importorskip("torch")
    Path("m.py").write_text(MODEL)
    planned("m.py:build", "--level", level, "--mem", "100%")
    Path("m.py").unlink()
    for command in (
        ["simulate"],
        ["explain"],
        ["plot", "timeline", "-o", "t.svg"],
        ["report", "-o", "r.html"],
    ):
        assert run([*command, "plan.json"]) == 0, capsys.readouterr().err
    assert "m.py:build as captured for the plan" in capsys.readouterr().out
    code = run(["export", "--to", "torch", "plan.json"])
    said = capsys.readouterr().err
    assert code == (0 if level == "block" else 2), said
    assert level == "block" or "torch does not take a graph" in said
    # What asks for the model itself needs it, and says which file is missing.
    for again in (["simulate", "plan.json", "--remeasure"], ["validate", "plan.json"]):
        assert run(again) == 2
        assert "m.py" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["validate", "--rounds", "0"], ["simulate"]])
def test_a_model_beside_its_plan_is_captured_as_for_the_plan(folder, command, capsys):
    """By op: by block it is another workload, or none at all where no blocks repeat."""
    pytest.importorskip("torch")
    Path("m.py").write_text(MODEL)
    planned("m.py:build", "--level", "op", "--mem", "100%", "--device", "cpu")
    assert run([*command, "m.py:build", "plan.json"]) == 0, capsys.readouterr().err
    assert "m.py:build by op" in capsys.readouterr().out
    assert run([*command, "m.py:build", "plan.json", "--level", "block"]) != 0


def test_a_plan_of_a_model_that_was_doctored_is_refused(folder, capsys):
    """What it carries must be what it was made for."""
    pytest.importorskip("torch")
    Path("m.py").write_text(MODEL)
    planned("m.py:build", "--level", "op", "--mem", "100%")
    content = json.loads(Path("plan.json").read_text())
    content["workload"]["captured"]["static_bytes"] += 512
    Path("plan.json").write_text(json.dumps(content))
    assert run(["explain", "plan.json"]) == 1
    assert "another workload" in capsys.readouterr().err
    content["workload"]["captured"]["ops"][0]["time_s"] = "long"
    Path("plan.json").write_text(json.dumps(content))
    assert run(["explain", "plan.json"]) == 2
    assert "workload.captured.ops[0].time_s" in capsys.readouterr().err
