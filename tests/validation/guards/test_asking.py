"""Values that Python asks of tensors: ``if mask.all()``, ``x.max().item()``."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.guards.asking import OtherAnswer  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402


class Asks(nn.Module):
    """Takes another way where some input is negative; draws and counts before it knows."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = self.drop(self.norm(self.linear(x)))
        return torch.tanh(h) if (x >= 0).all() else torch.relu(h) * int((x.argmax() % 3).item())


def test_another_answer_leaves_nothing_changed():
    torch.manual_seed(0)
    model, x = Asks(), torch.rand(16, 8)
    captured = capture(model, (x,), lambda y: y.square().mean())
    module = captured.module(Schedule.store_all(captured.graph))
    buffers = [b.clone() for b in model.buffers()]
    state = torch.get_rng_state()
    with pytest.raises(OtherAnswer, match=r"of a tensor of the step is False where True"):
        module(x - 1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, buffers, model.buffers()))


def test_what_a_function_of_torch_asks_is_asked_in_every_step():
    """As `gaussian_nll_loss` asks whether a variance is negative: torch's own error comes."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 4), torch.rand(8, 4), torch.rand(8, 4)

    def loss(found, target):
        return nn.functional.gaussian_nll_loss(found, target, found.detach() + 10)

    module = schedsim.rematerialize(model, (x, y), "100%", loss, effort=0.1)
    assert module.level == "op"
    expected = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    module(x, y).backward()
    assert all(map(torch.equal, expected, (p.grad for p in model.parameters())))
    with pytest.raises(ValueError, match="var has negative"):
        module(x - 100, y)
