"""``schedsim plan``: a report, a document, a file."""

from __future__ import annotations

import json

import pytest

from schedsim.cli.app import run


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


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--maximize", "batch"], "largest batch"),
        ([], "next\n"),
    ],
)
def test_which_of_its_jobs_it_does(call, more, says):
    """The largest size, or one plan; each with what to do next."""
    code, out, _ = call("plan", "--layers", "2", "--mem", "6GB", "--planner", "rotor", *more)
    assert code == 0
    assert says in out


def test_ways_of_a_model_are_refused_without_one(call):
    """Before anything is planned."""
    for more in (["--ways"], ["--accumulate", "2"], ["--chunk", "auto"]):
        code, out, err = call("plan", "--layers", "2", "--mem", "6GB", *more)
        assert (code, out) == (2, "")
        assert "--accumulate, --chunk and --ways are for real models" in err
