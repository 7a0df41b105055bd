"""Gradients of parameters: where they are made, and how many bytes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.gradients_made import (  # noqa: E402
    MadeGradients,
    given_gradients,
    own_gradients,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def a_model():
    """Three layers, the last of which shares its weight with the first."""
    model = nn.Sequential(*(nn.Linear(16, 16, bias=i == 1) for i in range(3)))
    model[2].weight = model[0].weight
    return model


def test_a_shared_weight_is_made_by_its_last_user():
    """The gradients have 16 x 16 numbers and one bias."""
    chain = capture_chain(a_model(), torch.randn(64, 16), lambda y: y.sum(), rounds=0).chain
    assert chain.gradient_bytes == (0, 1024 + 64, 1024, 0)
    assert chain.beside_bytes == (2112, 1024, 0)
    simulation = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
    assert {t.name for t in simulation.live_tensors(simulation.num_runs - 1)} >= {"g2", "g3"}


def test_gradients_that_are_there_are_resident():
    """They are counted as static, and put back."""
    model, x = a_model(), torch.randn(64, 16)
    without = capture_chain(model, x, lambda y: y.sum(), rounds=0)
    kept = []
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
        kept.append(parameter.grad)
    beside = capture_chain(model, x, lambda y: y.sum(), rounds=0)
    assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
    assert (without.keeps_gradients, beside.keeps_gradients) == (False, True)
    assert beside.chain.gradient_bytes == ()
    assert beside.chain.static_bytes == without.chain.static_bytes + 2112


def test_pieces_make_what_was_not_there():
    model = a_model()
    with given_gradients(model, None, resident=False), own_gradients(model, None) as resident:
        assert not resident
        made = MadeGradients(list(model.parameters()))
        model[1](torch.ones(1, 16)).sum().backward()
        made.forget()
        assert model[1].weight.grad is None
        model[1](torch.ones(1, 16)).sum().backward()
        assert made.settle() == 1088
        model(torch.ones(1, 16)).sum().backward()
        assert made.settle() == 1024
    assert all(p.grad is None for p in model.parameters())
