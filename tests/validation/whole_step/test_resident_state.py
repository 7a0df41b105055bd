"""What is resident besides activations: parameters, gradients, buffers, optimizer state."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.whole_step.resident_state import resident_state  # noqa: E402
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


def test_state_of_parameters_that_are_trained_later_is_foreseen():
    """A layer that is unfrozen has no state yet beside that of the others."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    half = resident_state(model, optimizer).optimizer_bytes
    model[0].requires_grad_(True)
    found = resident_state(model, optimizer)
    assert (found.optimizer_bytes, "foreseen for 2" in found.optimizer_source) == (2 * half, True)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert resident_state(model, optimizer).optimizer_bytes == 2 * half


def test_an_optimizer_whose_state_is_that_of_the_first_parameter_is_measured():
    """L-BFGS takes no step without the loss, so that no more is foreseen."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    found = resident_state(model, optimizer)
    assert found.optimizer_bytes > 0
    assert found.optimizer_source == "measured, LBFGS"
