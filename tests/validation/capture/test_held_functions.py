"""Functions on a model that reach it otherwise than by self."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture.held_functions import hold_twins  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402


def line():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))


def wrapped(model):
    old = model.forward
    model.forward = lambda x: old(x) * 2


def wrapped_by_a_decorator(model):
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)


def bound_by_hand(model):
    def forward(self, scale, x):
        return self[2](self[1](self[0](x))) * scale

    model.forward = functools.partial(forward, model, 2.0)


def inner_wrapped(model):
    inner, last = model[1], model[2]
    old = inner.forward
    inner.forward = lambda x: last(old(x))


def hooked(model):
    first = model[0]
    model[2].register_forward_hook(lambda _, __, output: first(output))


PATCHES = [wrapped, wrapped_by_a_decorator, bound_by_hand, inner_wrapped, hooked]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_copy_runs_its_own_parameters(patch):
    model, x = line(), torch.randn(4, 8)
    patch(model)
    memo = {}
    twin = copy.deepcopy(model, memo)
    hold_twins(model, twin, memo)
    expected = model(x)
    assert torch.equal(twin(x), expected)
    twin(x).float().sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in twin.parameters())


@pytest.mark.parametrize("way", ["op", pytest.param("in place", marks=pytest.mark.slow)])
@pytest.mark.parametrize("patch", PATCHES[:2])
def test_a_forward_on_the_instance_is_planned(patch, way):
    """Losses and gradients are the plain model's to the bit, and nothing is said."""
    torch.manual_seed(0)
    model, x, target = line(), torch.randn(64, 8), torch.randn(64, 8)

    def loss(output, target):
        return (output - target).square().mean()

    patch(model)
    loss(model(x), target).backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    if way == "op":
        module = schedsim.rematerialize(model, (x, target), "100%", loss, level="op", effort=0.1)
        module(x, target).backward()
    else:
        schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.1)
        loss(model(x), target).backward()
    assert all(map(torch.equal, (p.grad for p in model.parameters()), expected))


def test_a_model_out_of_reach_is_named():
    """A trace of the copy would train nothing."""

    class Holder:
        def __init__(self, model):
            self.run = model.forward

    model = line()
    holder = Holder(model)
    model.forward = lambda x: holder.run(x)
    with pytest.raises(UnsupportedError, match="none of the parameters that its step trains"):
        schedsim.rematerialize(
            model, torch.randn(4, 8), "100%", lambda y: y.square().mean(), level="op"
        )
