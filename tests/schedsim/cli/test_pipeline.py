"""``schedsim pipeline`` and its picture: reports, JSON, files, refusals."""

from __future__ import annotations

import json

import pytest

from schedsim.cli.app import run

SMALL = ["--layers", "8", "--hidden", "64", "--heads", "4", "--seq", "32"]
PIPE = ["pipeline", *SMALL, "--stages", "4", "--micro-batches", "8"]


def test_a_report(capsys):
    """What was assumed, the step, a row a device."""
    assert run(PIPE) == 0
    out = capsys.readouterr().out
    assert "pipeline: 4 devices, 8 micro-batches, 1f1b, messages take no time" in out
    assert "optimal, in" in out
    assert "27.3 %" in out  # (4 - 1) / (8 + 4 - 1)
    rows = [line for line in out.splitlines() if line[:1].isdigit() and ".." in line]
    assert [row.split()[1] for row in rows] == ["0..1", "2..3", "4..5", "6..7"]


def test_json_and_file(capsys, tmp_path):
    """One document on stdout, the same in the file; assumptions on stderr."""
    file = tmp_path / "pipeline.json"
    assert run([*PIPE, "--json", "-o", str(file)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document == json.loads(file.read_text())
    assert document["schema"] == "schedsim.pipeline-plan/1"
    assert document["cuts"] == [0, 2, 4, 6, 8]
    assert len(document["step"]["devices"]) == 4
    assert "micro-batches" in captured.err


def test_a_budget(capsys):
    """With --mem each device fits, early ones recompute more; too little says what would do."""
    assert run([*PIPE, "--json"]) == 0
    peak = json.loads(capsys.readouterr().out)["step"]["peak_bytes"]
    budget = int(0.6 * peak)
    assert run([*PIPE, "--json", "--mem", f"{budget}B"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step"]["peak_bytes"] <= budget
    again = [device["recompute_s"] for device in document["step"]["devices"]]
    assert again[0] > again[-1]
    assert len(document["stage_plans"]) == 4
    assert run([*PIPE, "--mem", "100kB"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "hint: the least found to fit is" in error
    assert run([*PIPE, "--mem", f"{budget}B", "--recompute", "none"]) == 1
    assert "--recompute auto may need less" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ["--schedule", "gpipe", "--recompute", "stage"],
        ["--schedule", "interleaved", "--chunks", "2", "--link", "10GB/s"],
        ["--schedule", "zero-bubble", "--free-outputs"],
        ["--tensor-parallel", "2", "--collectives", "1GB/s", "--granularity", "block"],
        ["--partition", "1,2,2,3", "--link", "pcie4", "--link-latency", "1e-5"],
        ["--static", "auto", "--head", "--recompute", "layers", "--late-recompute"],
    ],
)
def test_other_pipelines(capsys, more):
    """Orders, links, collectives, cuts and model state as options."""
    assert run([*PIPE, *more]) == 0
    assert "device" in capsys.readouterr().out


def test_partition_auto(capsys):
    """Cuts are chosen with --partition auto, and never worse."""
    times = []
    for more in ([], ["--partition", "auto"]):
        assert run([*PIPE, "--head", "--mem", "15MB", "--json", *more]) == 0
        times.append(json.loads(capsys.readouterr().out)["step"]["makespan_s"])
    assert times[1] <= times[0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--schedule", "2f2b"], "schedule '2f2b' is unknown"),
        (["--schedule", "interleaved", "--chunks", "2", "--micro-batches", "6"], "multiple of 4"),
        (["--stages", "9"], "8 layers cannot be split into 9 stages"),
        (["--stages", "0"], "--stages 0 is not at least 1"),
        (["--partition", "1,2"], "3 layers of 8"),
        (["--partition", "some"], "neither even, nor auto"),
        (["--partition", "2,2,4"], "has 3 stages instead of 4"),
        (["--recompute", "some"], "--recompute 'some' is unknown"),
        (["--recompute", "auto"], "needs --mem"),
        (["--recompute", "none", "--partition", "auto"], "does not go with"),
        (["--link", "fast"], "'fast' is not a link"),
        (["--link-latency", "1"], "needs --link"),
        (["--collectives", "1GB/s"], "need --tensor-parallel"),
        (["--granularity", "op"], "a pipeline takes a chain"),
    ],
)
def test_refusals(capsys, more, says):
    """One error line with what is wrong, one with what to do."""
    assert run([*PIPE, *more]) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("error: ")
    assert says in error[0]
    assert error[1].startswith("hint: ")


def test_the_picture(capsys, tmp_path):
    """`plot pipeline` writes one."""
    file = tmp_path / "pipeline.svg"
    assert run(["plot", *PIPE, "-o", str(file)]) == 0
    assert file.read_text().count("<path") > 20
    assert run(["plot", *PIPE, "--mem", "100kB", "-o", str(file)]) == 1


@pytest.mark.slow
def test_a_saved_plan_is_replayed(capsys, tmp_path):
    """What -o writes gives the same numbers again; on another workload it is refused."""
    file = str(tmp_path / "plan.json")
    for more in (["--mem", "400kB"], ["--mem", "600kB", "--schedule", "zero-bubble"], []):
        assert run([*PIPE, *more, "-o", file, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert run([*PIPE, "--replay", file, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["step"] == made["step"]
        assert again["stage_plans"] == made["stage_plans"]
    assert run([*PIPE, "--replay", file, "--link", "1GB/s"]) == 2
    assert "--link 1GB/s, but the plan is for none" in capsys.readouterr().err
    assert run([*PIPE, "--replay", file, "--mem", "1GB"]) == 2
    assert run([*PIPE[:-1], "4", "--replay", file]) == 2
    assert "the plan is for 8" in capsys.readouterr().err
    assert run(["plot", *PIPE, "--replay", file, "-o", str(tmp_path / "p.svg")]) == 0
