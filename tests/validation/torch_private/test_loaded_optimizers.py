"""Optimizers that are given a state which none of their steps has made."""

from __future__ import annotations

import copy
import pickle

import torch
from schedsim.validation.torch_private.loaded_optimizers import when_given_state
from torch.optim.optimizer import Optimizer


def test_loaded_copied_and_unpickled_optimizers_are_told_of(monkeypatch):
    """With the state that they have by then; a step of their own tells of nothing."""
    monkeypatch.setattr(Optimizer, "__setstate__", Optimizer.__setstate__)  # put back at the end
    told = []
    when_given_state(lambda optimizer: told.append((type(optimizer), len(optimizer.state))))
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    assert told == []
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    other.load_state_dict(optimizer.state_dict())
    copy.deepcopy(optimizer)
    pickle.loads(pickle.dumps(optimizer))
    assert told == 3 * [(torch.optim.Adam, 1)]
