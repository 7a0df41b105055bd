"""Modules that are made as copies of others."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from schedsim.validation.torch_private import copied_modules
from torch import nn


def loaded(module):
    """`module` as another one from a file."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)), loaded]
)
def test_both_are_told_of(copied, monkeypatch):
    given, made = [], []
    for name in ("__getstate__", "__setstate__"):  # put back behind this test
        monkeypatch.setattr(nn.Module, name, getattr(nn.Module, name))
    copied_modules.when_copied(given.append, made.append)
    module = nn.Sequential(nn.Linear(2, 2))
    found = copied(module)
    assert {id(it) for it in given} >= {id(it) for it in module.modules()}
    assert [id(it) for it in made] == [id(found[0]), id(found)]
    assert torch.equal(found[0].weight, module[0].weight)
    made.clear()
    found.load_state_dict(module.state_dict())
    assert made == []
