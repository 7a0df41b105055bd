"""``--keep`` and ``--recompute``: what a plan holds to, says, and is given again by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import schedsim
from schedsim.cli.app import run
from schedsim.cli.options.rule_options import rule_facts, rule_words
from schedsim.dataflow.recomputation_rules import RecomputationRules
from schedsim.files.document import save

CHAIN = schedsim.Chain.from_arrays(
    "four", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4, saved_bytes=[20] * 4
)
RULES = ["--keep", "s1", "--recompute", "s0"]


@pytest.fixture(autouse=True)
def chain_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(CHAIN, "chain.json")


def test_words_and_facts():
    """For a shell, and for people."""
    assert rule_words({"keep": ["h.*.router", "s1"]}) == ["--keep", "'h.*.router'", "--keep", "s1"]
    assert rule_facts(RecomputationRules((), ("a", "b"))) == [("recomputed as asked", "a, b")]


def test_a_plan_holds_to_them_and_everything_says_so(capsys):
    """The plan, its file, its replay, its explanation; and the command that gives it again."""
    assert run(["plan", "chain.json", "--mem", "64B", *RULES, "-o", "plan.json"]) == 0
    said = capsys.readouterr().out
    assert "kept and recomputed as asked, gap 0.00 %" in said
    assert "schedsim compare chain.json --mem 64 --keep s1 --recompute s0" in said
    document = json.loads(Path("plan.json").read_text())
    assert document["setting"]["rules"] == {"keep": ["s1"], "recompute": ["s0"]}
    for command in (["simulate"], ["explain"]):
        assert run([*command, "plan.json", "chain.json"]) == 0
        assert "kept as asked" in capsys.readouterr().out
    assert run(["export", "plan.json", "chain.json", "--to", "torch"]) == 0
    names = schedsim.load("plan.json").schedule.names
    assert (names.count("F1"), names.count("F0") > 1) == (1, True)


def test_refusals_name_the_place(capsys):
    """A pattern of nothing, and a search that looks at other sizes."""
    assert run(["plan", "chain.json", "--mem", "64B", "--keep", "layer1"]) == 2
    assert "keep: 'layer1' names nothing of four" in capsys.readouterr().err
    assert run(["plan", "--layers", "4", "--mem", "60%", "--maximize", "batch", *RULES]) == 2
    assert "--keep does not go with --maximize" in capsys.readouterr().err
    assert run(["plot", "timeline", "chain.json", *RULES, "-o", "a.png"]) == 2
    assert "--keep" in capsys.readouterr().err


def test_comparisons_and_curves_hold_to_them(capsys):
    """Planners that cannot are named; the curve speaks of the rules."""
    assert run(["compare", "chain.json", "--mem", "64B", *RULES]) == 0
    said = capsys.readouterr()
    assert "frontier" in said.out
    assert "periodic: planner 'periodic' cannot follow keep on a chain" in said.err
    assert run(["plot", "frontier", "chain.json", *RULES, "-o", "curve.json"]) == 0
    assert json.loads(Path("curve.json").read_text())["points"][-1]["overhead"] == pytest.approx(
        1 / 12
    )


def test_a_sweep_holds_to_them(tmp_path):
    """By fields of the experiment."""
    text = 'workloads = ["chain.json"]\nbudgets = ["64B"]\nplanners = ["frontier", "periodic"]\n'
    (tmp_path / "e.toml").write_text(text + 'keep = "s1"\nrecompute = ["s0"]\n')
    assert run(["sweep", "e.toml", "-o", "rows.jsonl"]) == 1  # one row is a refusal
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    rows = {row["planner"]: row for row in rows if "planner" in row}
    assert (
        rows["frontier"]["makespan_s"]
        == schedsim.plan(CHAIN, 64, keep="s1", recompute="s0").makespan_s
    )
    assert "cannot follow keep" in rows["periodic"]["error"]["message"]
