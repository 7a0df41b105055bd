"""What is resident besides activations: parameters, gradients, buffers, optimizer state."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.resident_state import resident_state  # noqa: E402
from torch import nn  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model(num=6, dropout=0.1):
    """A line of small blocks, and a step's inputs."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(dropout)) for _ in range(num))
    return nn.Sequential(*blocks), (torch.randn(512, 32), torch.randn(512, 32))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_optimizer_state_is_foreseen_as_it_will_be(kind):
    model, (x, target) = a_model(2)
    optimizer = kind(model.parameters(), lr=0.1)
    before = resident_state(model, optimizer).optimizer_bytes
    LOSS(model(x), target).backward()
    optimizer.step()
    assert before == resident_state(model, optimizer).optimizer_bytes


def test_the_formula_of_adam_counts_its_steps():
    """A tensor for each parameter beside the moments, as torch keeps it."""
    model, (x, target) = a_model(2)
    optimizer = torch.optim.AdamW(model.parameters())
    LOSS(model(x), target).backward()
    optimizer.step()
    by_formula = resident_state(model, "adamw").optimizer_bytes
    assert by_formula == resident_state(model, optimizer).optimizer_bytes
