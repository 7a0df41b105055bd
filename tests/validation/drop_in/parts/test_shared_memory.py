"""Buffers and batches that come to share memory after a graph was traced."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from schedsim.validation.drop_in.parts.shared_memory import SharedMemory, sharing
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn

import schedsim


def test_bytes_in_common_and_not_storages_alone_are_shared():
    """As of buffers that are views of one flat tensor, which a graph may write apart."""
    flat = torch.zeros(4, 4)
    assert sharing([flat[0], flat[1], flat[2:]]) == frozenset()
    assert sharing([flat[0], flat[1:], flat[2]]) == {(1, 2), (2, 1)}
    assert sharing([flat[0], flat[1:], flat[2]], [2]) == {(2, 1)}
    assert sharing([flat, 3, None, flat[:0]]) == frozenset()


def test_the_graph_runs_as_it_is_where_memory_is_shared_otherwise_than_in_the_trace():
    """Also where it no longer is."""
    told, x, y = [], torch.zeros(4), torch.zeros(4)
    call = SharedMemory(lambda *_: "call", lambda *_: "plain", {0}, lambda *at: told.append(at))
    assert [call(x, y), call(x, x), call(x, y)] == ["call", "plain", "call"]
    call = SharedMemory(lambda *_: "call", lambda *_: "plain", None, lambda *at: told.append(at))
    assert [call(x, x), call(x, y)] == ["call", "plain"]
    assert told == [(0, 1), (0, 1)]


class Means(nn.Module):
    """Writes two buffers, the second behind the first."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("means", torch.zeros(4, 8))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.means[0] = self.mean
        return self.layers(x - self.mean) + self.means.sum(0)


def trained(model, step, batches):
    """Losses, gradients and buffers of each step; the buffers share memory from the third on."""
    found = []
    for i, batch in enumerate(batches):
        if i == 2:
            model.mean = model.means[1]
        model.zero_grad()
        loss = step(batch).square().mean()
        loss.backward()
        held = (loss, *(p.grad for p in model.parameters()), *model.buffers())
        found.append([it.detach().clone() for it in held])
    return found


@pytest.mark.parametrize("door", [pytest.param("in_place", marks=pytest.mark.slow), "backend"])
def test_buffers_that_come_to_share_memory_are_those_of_the_plain_step(door):
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, batches = Means(), torch.randn(4, 64, 8)
    model = step = copy.deepcopy(plain)
    if door == "in_place":
        schedsim.rematerialize(model, (batches[0],), "90%", in_place=True, effort=0.02)
    else:
        options = {"budget": "90%", "effort": 0.02}
        step = torch.compile(model, backend="schedsim", options=options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = trained(model, step, batches)
    for mine, its in zip(found, trained(plain, plain, batches), strict=True):
        assert all(map(torch.equal, mine, its))
    told = [str(it.message) for it in said if it.category is PlainStepWarning]
    [line] = [it for it in told if "runs as it is" in it]
    assert "['mean'] and" in line
    assert "share their memory" in line
    assert "clone()" in line
