"""``schedsim profile``: a captured workload shown and written; no model is run here."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from four_stages import CHAIN

import schedsim

MODEL = "model:mlp,layers=4"


@pytest.fixture
def asked(monkeypatch, tmp_path) -> dict:
    """What the capture is asked for; by level it answers with a chain or its graph."""
    monkeypatch.chdir(tmp_path)
    seen: dict = {}

    def read_target(text, **given):
        seen.update(given, text=text)
        workload = CHAIN.graph if given["level"] == "op" else CHAIN
        return SimpleNamespace(workload=workload, lines=("a line",))

    module = ModuleType("schedsim.validation.targets")
    module.read_target = read_target
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("schedsim.cli.profile.need_torch", lambda: None)
    return seen


def test_a_chain_is_shown_stage_by_stage(asked, call):
    """Its numbers are those of the workload; what is given is handed on."""
    code, out, err = call(f"profile {MODEL} --rounds 3 --remeasure --device cpu")
    assert (code, err) == (0, "")
    assert asked == {
        "text": MODEL, "level": "block", "device": "cpu", "meter": None, "remeasure": True,
        "rounds": 3,
    }  # fmt: skip
    lines = out.splitlines()
    assert lines[0] == "a line"
    assert "store-all peak  92 B" in lines
    assert "step time       12 s" in lines
    rows = [line.split() for line in lines[-4:]]
    assert [row[0] for row in rows] == ["s0", "s1", "s2", "s3"]
    assert rows[0] == ["s0", "1", "s", "2", "s", "4", "B", "20", "B", "0", "B", "0", "B"]


def test_a_graph_is_shown_by_its_longest_ops(asked, call):
    """A dozen at most, the longest first."""
    out = call(f"profile {MODEL} --level op")[1]
    table = out.split("the longest of 9 ops\n")[1].splitlines()
    assert [row.split()[0] for row in table[1:]] == [
        *("B3", "B2", "B1", "B0", "F0", "F1", "F2", "F3", "loss")
    ]
    assert table[1].split()[1:] == ["backward", "2", "s", "4", "B", "0", "B"]


@pytest.mark.parametrize("level", ["block", "op"])
def test_the_file_and_the_document_are_the_workload(asked, call, level):
    """One document alone on stdout."""
    code, out, _ = call(f"profile {MODEL} --level {level} --json -o w.json")
    loaded = schedsim.load("w.json")
    assert code == 0
    assert loaded == (CHAIN if level == "block" else CHAIN.graph)
    assert json.loads(out) == schedsim.files.document.to_dict(loaded)


def test_what_is_no_model_is_refused(asked, call):
    """With the three forms of a model."""
    code, out, err = call("profile chain.json")
    assert (code, out, asked) == (2, "", {})
    assert "'chain.json' is no model" in err
    assert "FILE.py:FUNCTION, model:resnet50 or hf:gpt2" in err
