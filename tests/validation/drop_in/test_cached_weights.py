"""Loops that have `torch.nn.utils.parametrize.cached()` around a forward."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext

import pytest
import torch
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import schedsim


class Cell(nn.Module):
    """A layer whose weight is made of others, and used three times."""

    def __init__(self):
        super().__init__()
        self.inner = parametrizations.weight_norm(nn.Linear(16, 16))
        self.outer = nn.Linear(16, 4)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.inner(x))
        return self.outer(x)


def trained(step, model, x, num_forwards):
    """The parameters behind steps with and without the cache, of so many forwards."""
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for k in range(4):
        with parametrize.cached() if k % 2 else nullcontext():
            loss = sum(step(x * n).square().mean() for n in range(1, 1 + num_forwards))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append([it.detach().clone() for it in model.parameters()])
    return found


def assert_same(found, expected, num_forwards):
    """To the bit; of several forwards within rounding, as the weight is read several times."""
    for one, other in zip(found, expected, strict=True):
        if num_forwards == 1:
            assert all(map(torch.equal, one, other))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("num_forwards", [1, 2])
@pytest.mark.parametrize("way", ["in place", "backend"])
def test_steps_are_the_plain_ones_within_a_budget(way, num_forwards):
    torch.manual_seed(0)
    plain, x = Cell(), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        if way == "in place":
            step = schedsim.rematerialize(model, (x,), "200kB", in_place=True, effort=0.1)
        else:
            options = {"budget": "200kB", "effort": 0.1}
            step = torch.compile(model, backend="schedsim", options=options)
        found = trained(step, model, x, num_forwards)
    assert_same(found, trained(plain, plain, x, num_forwards), num_forwards)


@pytest.mark.slow
def test_a_budget_that_is_given_within_the_block():
    torch.manual_seed(0)
    plain, x = Cell(), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    with parametrize.cached():
        model.inner.weight.sum().backward()
        schedsim.rematerialize(model, (x,), "200kB", in_place=True, effort=0.1)
    model.zero_grad()
    found = trained(model, model, x, 1)
    assert_same(found, trained(plain, plain, x, 1), 1)
