"""A model that trains by a plan is the model: its state, its attributes, its copies."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Scaled(nn.Module):
    """A model with an attribute of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(8, 16), nn.Linear(16, 8), 2.0

    def forward(self, x):
        return self.scale * self.second(torch.tanh(self.first(x)))


@pytest.fixture
def module():
    """A step of it with its loss."""
    torch.manual_seed(0)
    return schedsim.rematerialize(
        Scaled(), (torch.randn(4, 8), torch.randn(4, 8)), "100%", nn.functional.mse_loss, effort=0.1
    )


def test_state_and_attributes_are_the_models(module):
    model = module.model
    assert module.state_dict().keys() == model.state_dict().keys()
    assert all(a is b for a, b in zip(module.parameters(), model.parameters(), strict=True))
    assert module.scale == 2.0
    assert dict(module.named_modules())["first"] is model.first
    module.load_state_dict({name: torch.zeros_like(t) for name, t in model.state_dict().items()})
    assert not any(p.any() for p in model.parameters())
    with pytest.raises(AttributeError):
        _ = module.nothing_of_this_name


def test_modes_and_formats_reach_the_model(module):
    assert not module.eval().model.training
    assert module.train().model.training
    assert module.double().model.first.weight.dtype is torch.float64


def test_in_evaluation_the_model_itself_runs(module):
    module.eval()
    x, target = torch.randn(4, 8), torch.randn(4, 8)
    assert torch.equal(module(x), module.model(x))
    assert torch.equal(module(x, target), nn.functional.mse_loss(module.model(x), target))


def test_a_copy_plans_for_its_own_parameters(module):
    copied, x = copy.deepcopy(module), (torch.randn(4, 8), torch.randn(4, 8))
    copied(*x).backward()
    assert all(p.grad is not None for p in copied.parameters())
    assert all(p.grad is None for p in module.parameters())
    assert copied.budget_bytes == module.budget_bytes


def test_pickling_is_refused_with_what_to_save(module):
    with pytest.raises(schedsim.UnsupportedError) as refused:
        pickle.dumps(module)
    assert "state_dict()" in refused.value.hint
