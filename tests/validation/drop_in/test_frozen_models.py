"""Forwards of a model that is frozen for a while, as of a generator while its critic is trained."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.parametrize("way", ["backend", "in place"])
def test_what_a_frozen_model_gives_is_no_step_and_counts_while_it_is_held(way):
    """It ran as it was, with a line that Dynamo traces nothing of it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh()), torch.randn(32, 16)
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    if way == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
        session = session_of(options)
    else:
        call = schedsim.rematerialize(model, x, in_place=True, **options)
        session = session_in(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.requires_grad_(False)
        made = call(x)
        model.requires_grad_(True)
        loss = call(x).square().mean()
    now = session.plans.known.resident.now
    assert now.passing_bytes == made.nbytes
    loss.backward()


@pytest.mark.parametrize("way", slow_where(["backend", "in place"], lambda way: way == "backend"))
def test_a_layer_that_is_trained_from_some_step_on_gets_gradients(way):
    """In torch 2.11, Dynamo looked at no parameter of a module where nothing was replaced."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(32, 16)
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    model[2].requires_grad_(False)
    if way == "backend":
        call = torch.compile(model, backend="schedsim", options=options)
    else:
        call = schedsim.rematerialize(model, x, in_place=True, **options)
    for _ in range(2):
        call(x).square().mean().backward()
    assert model[2].weight.grad is None
    model[2].requires_grad_(True)
    call(x).square().mean().backward()
    assert model[2].weight.grad is not None
