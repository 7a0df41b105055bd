"""``--memory-level`` on the command line."""

from __future__ import annotations

import json
import shlex

import pytest

from schedsim.cli.app import run

LAYERS = ("--layers", "24", "--hidden", "768", "--heads", "12", "--seq", "512")
PLAN = ("plan", *LAYERS, "--mem", "36MB", "--planner", "hrevolve")


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_a_plan_on_levels_is_kept_and_replayed(call, tmp_path):
    file = str(tmp_path / "plan.json")
    levels = ("--memory-level", "4:1e-5:1e-5", "--memory-level", "all@2GB/s")
    code, out, _ = call(*PLAN, *levels, "-o", file)
    assert code == 0
    assert "level 2" in out
    assert "level 3" in out
    assert "one at a time" in out
    code, out, _ = call("simulate", *LAYERS, file, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["num_copies"] > 0
    assert document["makespan_s"] == json.loads((tmp_path / "plan.json").read_text())["makespan_s"]


def test_a_level_makes_the_step_shorter(call):
    _, alone, _ = call(*PLAN, "--json")
    _, beside, _ = call(*PLAN, "--memory-level", "all@pcie4", "--json")
    assert json.loads(beside)["makespan_s"] < json.loads(alone)["makespan_s"]


def test_what_is_shown_next_asks_for_the_same_plan(call):
    _, out, _ = call(*PLAN, "--memory-level", "all@pcie4")
    line = next(line for line in out.splitlines() if line.strip().startswith("schedsim plan"))
    words = shlex.split(line.partition("#")[0])[1:]
    again = words[: words.index("-o")]
    _, first, _ = call(*PLAN, "--memory-level", "all@pcie4", "--json")
    _, second, _ = call(*again, "--json")
    assert json.loads(first)["schedule"] == json.loads(second)["schedule"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--planner", "rotor", "--memory-level", "4:1:1"), "does not take --memory-level"),
        (("--planner", "hrevolve", "--memory-level", "4"), "not understood"),
    ],
)
def test_what_is_refused(call, arguments, says):
    code, _, err = call("plan", *LAYERS, "--mem", "36MB", *arguments)
    assert code == 2
    assert says in err
