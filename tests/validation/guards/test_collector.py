"""The collector of cycles runs anywhere in a step: what it calls is no part of the step."""

from __future__ import annotations

import gc
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

COLLECTIONS = 0


def counted(phase, info):
    """As of a tool that watches the collector."""
    global COLLECTIONS
    COLLECTIONS += 1


@pytest.fixture
def watched_collector():
    """Every collection is counted in a global, and there are many in a step."""
    threshold = gc.get_threshold()
    gc.callbacks.insert(0, counted)
    gc.set_threshold(100)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(counted)


@pytest.mark.parametrize("level", ["op", "block"])
def test_steps_are_planned_once_while_collections_are_counted(level, watched_collector):
    """The global of the counting is another in each step, and no step depends on it."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    x, target = torch.randn(64, 8), torch.randn(64, 8)
    collections = COLLECTIONS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = schedsim.rematerialize(
            model, (x, target), "90%", F.mse_loss, effort=0.1, level=level
        )
        plan = module.plan
        for _ in range(3):
            module(x, target).backward()
            model.zero_grad()
    assert collections < COLLECTIONS
    assert module.plans == [plan]
