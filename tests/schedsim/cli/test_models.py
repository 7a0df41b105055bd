"""Real models on the command line: plan, validate, profile, plot validate."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.cli.app import run

MLP = "model:mlp,layers=4,hidden=32,batch=512"


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run the command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path / "cache"))

    def do(*arguments):
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return do


def test_a_model_is_planned_run_and_drawn(call, tmp_path):
    """Plan, validate, picture: a model in, proof out."""
    device = ("--device", "cpu")
    code, out, err = call("plan", MLP, "--mem", "560kB", "-o", "plan.json", *device)
    assert (code, err) == (0, "")
    assert f"{MLP} by block: 4 stages" in out
    assert "recomputed" in out
    code, out, err = call(
        "validate", MLP, "plan.json", "--rounds", "0", "-o", "report.json", *device
    )
    assert (code, err) == (0, "")
    assert out.count("holds  ") == 5
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["holds"]
    assert report["measured"]["peak_bytes"] <= 560_000
    assert call("plot", "validate", "report.json", "-o", "picture.svg")[0] == 0
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert call("simulate", MLP, "plan.json", *device)[0] == 0
    # Measured anew the times are others, the bytes are the same; a budget is still one.
    with_times = json.loads((tmp_path / "plan.json").read_text())
    with_times["makespan_s"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(with_times))
    assert call("simulate", MLP, "plan.json", *device)[0] == 0
    code, _, err = call("simulate", MLP, "plan.json", "--mem", "100kB", *device)
    assert code == 1
    assert "over the budget" in err


def test_a_plan_of_another_model_is_refused(call):
    """Exit 1 and the reason, not a run of something else."""
    call("plan", MLP, "--mem", "560kB", "-o", "plan.json", "--device", "cpu")
    other = MLP.replace("batch=512", "batch=128")
    code, _, err = call("validate", other, "plan.json", "--rounds", "0", "--device", "cpu")
    assert code == 1
    assert "another workload" in err


def test_what_does_not_hold_ends_in_1(call):
    """A budget below the peak of what is run."""
    arguments = ("--mem", "1MB", "--rounds", "0", "--device", "cpu")
    code, out, _ = call("validate", MLP, *arguments)
    assert code == 0
    assert "budget" in out
    call("plan", MLP, "--mem", "560kB", "-o", "plan.json", "--device", "cpu")
    code, out, err = call(
        "validate", MLP, "plan.json", "--mem", "100kB", "--rounds", "0", "--device", "cpu"
    )
    assert code == 1
    assert "FAILS  budget" in out
    assert err.startswith("error: budget not as predicted")


def test_a_profile_is_a_workload_file(call, tmp_path):
    """By blocks and by ops; the file is planned like any other."""
    code, out, _ = call("profile", MLP, "-o", "chain.json", "--device", "cpu")
    assert code == 0
    assert "workspace F" in out
    assert call("plan", "chain.json", "--mem", "560kB")[0] == 0
    code, out, _ = call("profile", MLP, "--level", "op", "--device", "a100-80gb", "--json")
    assert code == 0
    assert json.loads(out)["schema"] == "schedsim.graph/1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["validate", "chain.json"], "no model"),
        (["validate", "model:mpl"], "'mlp'"),
        (["validate", "model:mlp,lyers=2"], "'layers'"),
        (["validate", MLP, "--device", "tpu"], "cpu or cuda"),
        (["validate", MLP, "--level", "stage", "--device", "cpu"], "block or op"),
        (["validate", MLP, "--meter", "ruler", "--device", "cpu"], "storage"),
        (["profile", MLP, "--device", "a100-80gb"], "--level op"),
        (["plan", MLP, "--layers", "4", "--mem", "1GB"], "after commas"),
        (["plan", "--layers", "4", "--level", "op", "--mem", "1GB"], "--granularity"),
        (["plot", "validate", "nothing.json", "-o", "x.svg"], "nothing.json"),
    ],
)
def test_usage_errors(call, arguments, says):
    """Exit 2, an error line and a hint."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")
    assert "internal" not in err


def test_a_plan_of_a_model_is_validated_alone(call):
    """It remembers the model, its device and its level; a plan of a formula remembers none."""
    code, _, err = call("plan", MLP, "--mem", "560kB", "-o", "plan.json", "--device", "cpu")
    assert code == 0, err
    code, out, err = call("validate", "plan.json", "--rounds", "0")
    assert (code, err) == (0, "")
    assert out.count("holds  ") == 5
    call("plan", "--layers", "2", "--mem", "1TB", "-o", "formula.json")
    code, _, err = call("validate", "formula.json")
    assert code == 2
    assert "a plan, but not of a real model" in err
