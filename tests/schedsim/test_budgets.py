"""Budgets as people write them mean the same everywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.errors import SchedsimError
from schedsim.plans.budgets import parse_budget, parse_share, read_budget
from schedsim.units import UnitError, parse_bytes

CHAIN = schedsim.Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)


def test_a_share_is_of_the_store_all_peak():
    """Store-all takes 32 bytes; shares round down, the safe side."""
    assert read_budget("100%", CHAIN) == 32
    assert read_budget("99 %", CHAIN) == 31  # 31.68
    assert schedsim.plan(CHAIN, "82%").budget_bytes == 26  # 26.24
    assert schedsim.compare(CHAIN, "82%", ["rotor"])[0].budget_bytes == 26
    assert schedsim.pareto(CHAIN, "rotor", budgets=["82%", 32]).points[0].budget_bytes == 26


def test_the_command_line_and_sweeps_read_the_same(tmp_path, capsys):
    """One share, three readers, one number of bytes."""
    file = tmp_path / "chain.json"
    schedsim.save(CHAIN, file)
    assert run(["plan", str(file), "--mem", "82%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget_bytes"] == 26
    assert run(["compare", str(file), "--mem", "82%", "--planners", "rotor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["budget_bytes"] == 26
    assert run(["simulate", str(file), "--mem", "82%", "--json"]) == 1  # store-all passes it
    assert json.loads(capsys.readouterr().out)["budget_bytes"] == 26
    experiment = tmp_path / "e.toml"
    experiment.write_text('workloads = ["chain.json"]\nbudgets = ["82%"]')
    line = ["sweep", str(experiment), "-o", str(tmp_path / "r.jsonl"), "--dry-run", "--json"]
    assert run(line) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["budget_bytes"] == 26
    assert schedsim.plan(file, "82%").budget_bytes == schedsim.plan(str(file), "26B").budget_bytes


def test_a_pipeline_takes_a_share_of_its_fullest_device(capsys):
    """100 % of what is needed without recomputation fits without recomputation."""
    line = ["pipeline", "--layers", "4", "--stages", "2", "--micro-batches", "2", "--json"]
    assert run(line) == 0
    peak = json.loads(capsys.readouterr().out)["step"]["peak_bytes"]
    assert run([*line, "--mem", "100%"]) == 0
    assert json.loads(capsys.readouterr().out)["budget_bytes"] == peak


@pytest.mark.parametrize("text", ["0%", "-5%", "%", "nan%", "1e9%", "60 percent", "1/0%"])
def test_what_is_no_share_is_refused(text):
    """With the way to write it."""
    with pytest.raises(UnitError) as caught:
        parse_budget(text, 100)
    assert caught.value.hint
    assert len(caught.value.message) < 80


def test_parsing_needs_no_workload_for_a_size():
    """The store-all peak is asked for shares alone."""
    assert parse_budget("8GB", lambda: 1 // 0) == 8 * 10**9
    assert parse_share("12.5%") == parse_share("12.5 %")
    assert read_budget(np.int64(7), CHAIN) == 7


@pytest.mark.parametrize("value", [True, -1, 3.5, None, [8]])
def test_numbers_that_are_no_bytes(value):
    """Refused with the ways to write a budget."""
    with pytest.raises(SchedsimError, match="is not a number of bytes") as caught:
        schedsim.plan(CHAIN, value)
    assert "'60%'" in caught.value.hint


@pytest.mark.parametrize("text", ["8Gb", "8 Mb", "8Gib", "8Kb", "100Tb"])
def test_bits_are_refused(text):
    """A small b is for bits; the hint writes the bytes."""
    with pytest.raises(UnitError, match="b is for bits") as caught:
        parse_bytes(text)
    assert "B for bytes" in caught.value.hint


def test_lower_case_alone_is_bytes():
    """Nobody means gigabits by 8gb, nor says so."""
    assert parse_bytes("8gb") == 8 * 10**9


@pytest.mark.parametrize(
    ("gap", "says", "remedy"),
    [
        ("5", "--gap 5 is 500% of the bound", "--gap 5% is 5 %"),
        ("-0.1", "--gap -0.1 is not at least 0", "0.01, or 1%"),
        ("nan", "--gap nan is not at least 0", "0.01, or 1%"),
        ("inf", "--gap inf is not at least 0", "0.01, or 1%"),
        ("x", "--gap x is not at least 0", "0.01, or 1%"),
    ],
)
def test_gaps_that_cannot_be_meant(capsys, gap, says, remedy):
    """Refused with the remedy; a share is taken."""
    line = ["plan", "--layers", "4", "--mem", "60%"]
    assert run([*line, f"--gap={gap}"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert remedy in error


def test_a_gap_as_a_share(capsys):
    """--gap 5% is --gap 0.05, in Python too."""
    assert run(["plan", "--layers", "4", "--mem", "60%", "--gap", "5%", "--planner", "rotor"]) == 0
    assert "--gap 0.05" in capsys.readouterr().out
    with pytest.raises(SchedsimError, match="gap 5 is 500%") as caught:
        schedsim.plan(CHAIN, 32, gap=5)
    assert "gap=0.05" in caught.value.hint
