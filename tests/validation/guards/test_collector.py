"""The collector of cycles runs anywhere in a step: what it calls is no part of the step."""

from __future__ import annotations

import gc
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.guards.reach import CodeRun  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

COLLECTIONS = 0
FINALIZED = 0
READ = 1.0


class InACircle:
    """Ends only when cycles are collected."""

    def __init__(self):
        self.own = self

    def __del__(self):
        global FINALIZED
        FINALIZED += 1


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


def reads_a_global():
    """What a step reads itself counts, before a collection and after one."""
    return READ


def test_what_a_collection_runs_is_not_noted_and_what_follows_is():
    before, finalized = list(gc.callbacks), FINALIZED
    gc.callbacks.append(counted)
    InACircle()
    collections = COLLECTIONS
    with CodeRun() as run:
        gc.collect()
        reads_a_global()
    gc.callbacks.remove(counted)
    # one start and one stop
    assert (collections + 2, finalized + 1) == (COLLECTIONS, FINALIZED)
    assert gc.callbacks == before
    assert reads_a_global.__code__ in run.codes
    assert not {counted.__code__, InACircle.__del__.__code__} & set(run.codes)
    assert [names for scope, names in run.reach().scopes if scope is globals()] == [{"READ"}]


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
            model, (x, target), "90%", F.mse_loss, time_limit_s=0.1, level=level
        )
        plan = module.plan
        for _ in range(3):
            module(x, target).backward()
    assert collections < COLLECTIONS
    assert module.plans == [plan]
