"""The comparison of the planned step with the plain one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.whole_step import step_check  # noqa: E402
from schedsim.validation.whole_step.step_check import no_room_for  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


@pytest.mark.parametrize("check", [0, True, "sometimes", 2.5])
def test_a_check_that_says_nothing_is_refused(check):
    with pytest.raises(SchedsimError, match="check="):
        schedsim.rematerialize(nn.Linear(2, 2), torch.ones(2, 2), "100%", torch.sum, check=check)


def a_line():
    """A model that both levels can plan, and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    return model, torch.randn(64, 8), torch.randn(64, 8)


def test_what_was_compared_is_said():
    model, x, target = a_line()
    options = {"effort": 0.1}
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, **options)
    assert "check          loss, gradients, buffers and generators are" in module.report()
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, check="never", **options)
    assert "check          not compared with the plain step" in module.report()


def test_gradients_of_the_losss_own_parameters_are_left_as_they_are():
    """Planning by blocks runs the loss; its parameters have no gradient afterwards."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, y, target):
            return ((y - target).square() * self.weight).mean()

    model, x, target = a_line()
    loss = Weighted()
    module = schedsim.rematerialize(model, (x, target), "90%", loss, level="block")
    assert loss.weight.grad is None
    module(x, target).backward()
    found, loss.weight.grad = loss.weight.grad, None
    loss(model(x), target).backward()
    assert torch.equal(found, loss.weight.grad)


def test_an_optimizer_that_steps_in_backward_does_not_step_while_planning():
    model, x, target = a_line()
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: p.data.add_(p.grad))
    for level in ("op", "block"):
        schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, level=level, effort=0.1)
    assert all(map(torch.equal, before, model.parameters()))


def test_bytes_left_over_are_not_compared(monkeypatch):
    """A dry device's results are no numbers; a step that differs there is none that is refused."""
    monkeypatch.setattr(step_check, "has_values", lambda device: False)
    monkeypatch.setattr(step_check, "Both", None)
    model, x, target = a_line()
    planned = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, effort=0.1)
    assert "the dry device computes no values" in planned.report()


def test_a_step_that_would_not_fit_is_not_run(monkeypatch):
    """Half of the host's memory is the limit; the line says what the step takes."""
    monkeypatch.setattr(step_check, "device_memory_bytes", lambda device: 2000)
    cpu = torch.device("cpu")
    assert no_room_for(1000, cpu, 0) is None
    assert no_room_for(1001, cpu, 0) == "that takes 1.00 kB (0.98 KiB)"
    model, x, target = a_line()
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, effort=0.1)
    assert "check          not compared with the plain step: that takes" in module.report()
