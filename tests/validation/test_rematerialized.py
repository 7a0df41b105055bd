"""A model that trains by a plan: its own parameters and state, another way through a step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation import rematerialized  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model():
    """Layers whose activation function keeps as many bytes as their product."""
    torch.manual_seed(0)
    parts = (nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(6))
    return nn.Sequential(*parts), (torch.randn(512, 48), torch.randn(512, 48))


def test_another_budget_takes_no_new_capture(monkeypatch):
    """What was captured for these inputs is planned again."""
    model, inputs = a_model()
    module = schedsim.rematerialize(model, inputs, "90%", LOSS, effort=0.2)
    first = module.plan
    monkeypatch.setattr(rematerialized, "capture_step", None)
    module.replan(first.peak_bytes - 50_000)
    module(*inputs).backward()
    assert module.plan.peak_bytes <= first.peak_bytes - 50_000
