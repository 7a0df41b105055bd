"""``plan --maximize`` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import schedsim
from schedsim.cli.app import run


def test_on_the_command_line(capsys, tmp_path):
    """The text, its next steps, which fit and do not, and the same numbers as JSON."""
    line = ["plan", "--preset", "gpt2", "--mem", "2GB", "--maximize", "batch"]
    assert run(line) == 0
    out = capsys.readouterr().out
    largest = int(re.search(r"^largest batch +(\d+),", out, re.MULTILINE).group(1))
    assert f"batch {largest + 1} needs" in out
    assert "proven over persistent schedules" in out
    assert f"schedsim plan --preset gpt2 --batch {largest} --mem 2GB  # the largest" in out
    file = tmp_path / "plan.json"
    assert run([*line, "--json", "-o", str(file)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "schedsim.maximum/1"
    assert document["largest"]["size"] == largest
    assert document["beyond"]["min_feasible_bytes"] > 2 * 10**9
    assert run(["plan", "--preset", "gpt2", "--batch", str(largest), "--mem", "2GB"]) == 0
    assert run(["plan", "--preset", "gpt2", "--batch", str(largest + 1), "--mem", "2GB"]) == 1
    capsys.readouterr()
    assert run(["simulate", "--preset", "gpt2", "--batch", str(largest), str(file)]) == 0


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("--preset gpt2 --mem 1MB --maximize batch", 1, "even with batch 1"),
        ("chain.json --mem 1MB --maximize batch", 2, "needs a workload that can change it"),
        ("--preset resnet-50 --mem 1GB --maximize seq", 2, "does not go with resnet-50"),
        ("--preset gpt2 --mem 1GB --maximize depth", 2, "'depth' is not one of"),
    ],
)
def test_refusals(capsys, line, code, says):
    """One error line, and exit codes as everywhere."""
    assert run(["plan", *line.split()]) == code
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_of_a_real_model(capsys):
    """A model is captured at each size; what is measured is not compared."""
    pytest.importorskip("torch")
    target = "model:mlp,layers=2,hidden=8,batch=1"
    line = ["plan", target, "--mem", "2KB", "--maximize", "batch", "--json"]
    assert run(line) == 0
    document = json.loads(capsys.readouterr().out)
    size = document["largest"]["size"]
    assert document["beyond"]["size"] == size + 1
    assert document["checked_to"] == size + 1
    assert not document["fastest_proven"]


def test_the_plan_of_the_largest_is_kept_with_its_size(folder, capsys):
    """The file replays alone; the advised lines plan the largest and the fastest again."""
    line = "plan --layers 2 --mem 6GB --maximize batch --planner rotor -o largest.json"
    assert run(line.split()) == 0
    out = capsys.readouterr().out
    plan = schedsim.load("largest.json")
    size = int(re.search(r"^largest batch +(\d+),", out, re.MULTILINE)[1])
    assert plan.workload.source.options == {"layers": 2, "batch": size}
    assert run(["simulate", "largest.json"]) == 0
    capsys.readouterr()
    for what in ("largest", "fastest"):
        (advice,) = re.findall(rf"^  (schedsim plan .*)  # the {what}$", out, re.MULTILINE)
        assert "--planner rotor" in advice
        assert run([*advice.split()[1:], "-o", f"{what}.again.json"]) == 0
    again = json.loads(Path("largest.again.json").read_text())
    assert again["schedule"] == json.loads(Path("largest.json").read_text())["schedule"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--mem 60%", "60%"),
        ("--mem 1GB --batch 2", "--batch 2 does not go with it"),
        ("--mem 1GB --times t.json", "--times does not go with --maximize batch"),
        ("--mem 1GB --ways", "--maximize does not go with --ways"),
    ],
)
def test_what_a_search_over_sizes_cannot_honour(folder, capsys, more, says):
    """Refused at once: a share has no meaning where the peak changes with the size."""
    assert run(["plan", "--layers", "2", "--maximize", "batch", *more.split()]) == 2
    assert says in capsys.readouterr().err
