"""Workloads as calls take them: objects, files and names; all else is refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from four_stages import CHAIN

import schedsim
from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.pipelines import make_pipeline
from schedsim.workloads.given import is_target, read_workload


def test_objects_are_taken_as_they_are():
    """The very object: nothing is copied, and a pipeline is for its planners to take."""
    pipeline = make_pipeline(CHAIN, 2, 1)
    for one in (CHAIN, CHAIN.graph, pipeline):
        assert read_workload(one) is one


def test_a_file_by_a_text_or_a_path(tmp_path, monkeypatch):
    """Also one that is called like a preset."""
    monkeypatch.chdir(tmp_path)
    schedsim.save(CHAIN, "gpt2")
    for given in ("gpt2", Path("gpt2"), tmp_path / "gpt2"):
        assert read_workload(given) == CHAIN


@pytest.mark.parametrize(
    ("given", "error", "says", "hint"),
    [
        ("gpt2", SchedsimError, "gpt2 is a preset", "WorkloadOptions(preset='gpt2')"),
        ("model:gpt2", UnsupportedError, "model:gpt2 is a torch model", "rematerialize"),
        ("my_model.py:build", UnsupportedError, "is a torch model", "schedsim plan"),
        ("workload:nobody", SchedsimError, "unknown workload 'nobody'", ""),
        ([CHAIN], SchedsimError, "a list is no workload", "path of a file"),
        (None, SchedsimError, "a NoneType is no workload", "path of a file"),
        (3, SchedsimError, "a int is no workload", "path of a file"),
        (b"chain.json", SchedsimError, "a bytes is no workload", "path of a file"),
    ],
)
def test_what_is_none(tmp_path, monkeypatch, given, error, says, hint):
    """One line with what it is, and what to give instead."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        read_workload(given)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_plan_is_none(tmp_path):
    """Though it is a file of schedsim."""
    schedsim.save(schedsim.plan(CHAIN, 60), tmp_path / "plan.json")
    with pytest.raises(SchedsimError, match=r"plan\.json is a plan, not a workload"):
        read_workload(tmp_path / "plan.json")


def test_a_module_of_torch_is_sent_where_it_is_planned():
    """By its own class, so that the line names it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(UnsupportedError, match="a Linear is a torch model") as caught:
        read_workload(torch.nn.Linear(1, 1))
    assert "schedsim.rematerialize" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("model:gpt2", True),
        ("hf:gpt2,batch=4", True),
        ("my_model.py:build", True),
        ("my_model.py", True),
        ("my_model.py,batch=4", True),
        ("chain.json", False),
        ("gpt2", False),
        ("workload:hourglass", False),
        ("of.py.json", False),
        ("chain.json,a.py", False),
    ],
)
def test_what_names_a_model(text, target):
    """By what stands before the first comma."""
    assert is_target(text) is target
