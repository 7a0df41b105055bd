"""Bytes of optimizer state: those that torch.optim's own state takes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.optimizer_state import optimizer_bytes  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402

KINDS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "sgd-momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def mixed() -> nn.Module:
    """Two number formats, and a parameter that is not trained."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2).bfloat16(), nn.Linear(2, 7))
    model[2].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_as_many_as_the_optimizer_keeps_after_a_step(name):
    """Moments of the parameters' sizes and formats, and counters of steps."""
    model = mixed()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = KINDS[name](trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = [
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    assert optimizer_bytes(name, model) == sum(kept)


def test_bytes_are_taken_as_they_are():
    """And no optimizer takes none."""
    assert optimizer_bytes(1234, mixed()) == 1234
    assert optimizer_bytes("none", mixed()) == 0


@pytest.mark.parametrize("given", ["adm", True, -1, 2.5])
def test_what_is_no_optimizer_is_refused(given):
    """With the value, and what there is instead."""
    with pytest.raises(SchedsimError, match="optimizer=") as caught:
        optimizer_bytes(given, mixed())
    assert caught.value.hint
    assert "adam" in caught.value.hint or "bytes" in caught.value.hint
