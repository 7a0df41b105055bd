"""What is advised: the next commands, that give the same again, and what would lower the memory."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from training_graphs import unit_training_chain

from schedsim.cli.app import run
from schedsim.files.document import save
from schedsim.units import parse_bytes


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_infeasible_says_what_would_do(call):
    """Exit 1, the least budget, the op that sets it, and changes with computed numbers."""
    code, _, err = call("plan", "--layers", "4", "--mem", "1GB")
    assert code == 1
    assert "error: gpt3-175b does not fit in 1.00 GB" in err
    assert "hint: the proven least budget is" in err
    assert "(layer" in err
    assert "--attention flash" in err
    assert "--tensor-parallel 8" in err


def test_the_exact_least_budget_works(call):
    """The number in the hint is enough, and a byte less is not."""
    _, _, err = call("plan", "--layers", "4", "--mem", "1GB")
    least = parse_bytes(re.search(r"--mem (\w+)$", err, re.MULTILINE).group(1))
    assert call("plan", "--layers", "4", "--mem", str(least))[0] == 0
    assert call("plan", "--layers", "4", "--mem", str(least - 1))[0] == 1


def test_only_what_lowers_it_is_offered(call):
    """Each least budget in the table is below that of the workload as given."""
    err = call("plan", "--layers", "4", "--mem", "1GB")[2]
    _, table = err.split("what would lower it\n")
    stated = float(re.search(r"budget is ([\d.]+) GB", err).group(1))
    offered = [float(text) for text in re.findall(r"least ([\d.]+) GB", table)]
    assert offered
    assert all(size < stated for size in offered)


def test_the_next_steps_work(folder, capsys):
    """Each suggested line runs, and the first keeps the planner and its options."""
    run(["plan", "chain.json", "--mem", "60", "--planner", "rotor", "--slots", "60"])
    lines = capsys.readouterr().out.split("\nnext\n")[1].splitlines()
    steps = [shlex.split(line, comments=True) for line in lines]
    assert steps[0][2:] == shlex.split(
        "chain.json --mem 60 --planner rotor --slots 60 -o plan.json"
    )
    for step in steps:
        assert run(step[1:]) == 0
    assert json.loads(Path("plan.json").read_text())["planner"] == "rotor"


def kept(call, *line: str) -> list[str]:
    """The words of the advice that keeps the plan."""
    code, out, err = call("plan", *line)
    assert code == 0, err
    (first, *_) = out.split("\nnext\n")[1].splitlines()
    return shlex.split(first, comments=True)[1:]


@pytest.mark.parametrize(
    ("more", "advised"),
    [
        (["--planner", "local_search", "--search-seed", "12345678"], ["--search-seed", "12345678"]),
        (["--effort", "0.123456789"], ["--effort", "0.123456789"]),
        (["--time-limit", "3600.0"], ["--time-limit", "3600"]),
        (["--gap", "0.0123456789"], ["--gap", "0.0123456789"]),
        (["--order", "free"], ["--order", "free"]),
    ],
)
def test_numbers_are_advised_as_they_were_given(call, folder, more, advised):
    """To the last digit: the line is taken again, and asks for the very same."""
    save(unit_training_chain(6), "graph.json")
    words = kept(call, "graph.json", "--mem", "100%", *more)
    at = words.index(advised[0])
    assert words[at : at + 2] == advised
    assert call(*words)[0] == 0
    first = json.loads(Path("plan.json").read_text())["options"]
    assert kept(call, *words[1:-2])[: len(words)] == words
    assert call(*words)[0] == 0
    assert json.loads(Path("plan.json").read_text())["options"] == first


def test_a_link_and_levels_are_advised_too(call, folder):
    """With what belongs to them; `explain` is not, as such a plan has no single changes."""
    link = ("--link", "3B/s", "--host-mem", "1kB", "--host-latency", "1234567ns")
    words = kept(call, "chain.json", "--mem", "70", *link, "--effort", "0.1")
    at = words.index("--link")
    assert words[at : at + 6] == [
        *("--link", "3B/s", "--host-mem", "1000", "--host-latency", "0.001234567s")
    ]
    out = call("plan", "chain.json", "--mem", "70", *link, "--effort", "0.1")[1]
    assert "schedsim explain" not in out
    assert "schedsim compare chain.json --mem 70 --link 3B/s" in out


def test_a_file_with_blanks_is_quoted(call, folder):
    """So that a shell takes it as one word."""
    Path("a b.json").write_text(Path("chain.json").read_text())
    words = kept(call, "a b.json", "--mem", "60")
    assert words[:2] == ["plan", "a b.json"]
    out = call("plan", "chain.json", "--mem", "60", "-o", "my plan.json")[1]
    assert "schedsim simulate 'my plan.json'" in out
    assert "keep it" not in out  # it is kept already


def test_no_advice_without_a_formula(call, folder):
    """A file can be changed by nobody but its author."""
    code, _, err = call("plan", "chain.json", "--mem", "10")
    assert code == 1
    assert "what would lower it" not in err
    assert len(err.splitlines()) == 2
