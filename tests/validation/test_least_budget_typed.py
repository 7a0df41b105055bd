"""The least budget that a refusal names is accepted when it is typed in, of real models too."""

from __future__ import annotations

import re

import pytest
from tiers import slow_where

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.cli.app import run

MODELS = {
    "mlp": "model:mlp,layers=4,hidden=32,batch=8",
    "gpt2": "model:gpt2,layers=2,hidden=32,heads=2,seq=16,vocab=64,positions=16",
    "resnet": "model:resnet50,depths=1-1,width=8,image=32,classes=4",
    "unet": "model:unet,levels=2,width=4,image=16",
    "lstm": "model:lstm,seq=8,hidden=8,features=4,batch=2,steps=4",
}
SAID = re.compile(r"hint: the (?:proven least|least) budget .*: --mem (\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Times measured once a test, so that both calls plan the same workload."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("model", "level"),
    slow_where(
        [*((name, "block") for name in MODELS), ("mlp", "op"), ("gpt2", "op")],
        lambda case: case == ("gpt2", "op"),
    ),
)
def test_the_least_budget_is_accepted_as_it_is_written(model, level, capsys):
    """As a user copies it: the text of the hint, and nothing computed from it."""
    line = ["plan", MODELS[model], "--level", level, "--effort", "0.2", "--device", "cpu", "--mem"]
    assert run([*line, "1B"]) == 1
    refusal = capsys.readouterr().err
    found = SAID.search(refusal)
    assert found, refusal
    code = run([*line, found[1]])
    said = capsys.readouterr()
    assert code == 0, (found[1], said.err)
    assert re.search(r"^plan +(optimal|feasible)", said.out, re.MULTILINE), said.out
