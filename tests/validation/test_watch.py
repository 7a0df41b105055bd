"""Measured against planned while training goes on."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.repeated_forward import untouched  # noqa: E402
from schedsim.validation.watch import PlanLeftWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model(num=6, dropout=0.1):
    """A line of small blocks, and a step's inputs."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(dropout)) for _ in range(num))
    return nn.Sequential(*blocks), (torch.randn(512, 32), torch.randn(512, 32))


def made(level, budget="75%", **options):
    """A rematerialized module, the plain model and the inputs."""
    model, inputs = a_model()
    options = {"effort": 0.3, "level": level, **options}
    return schedsim.rematerialize(model, inputs, budget, LOSS, **options), model, inputs


def test_a_step_that_leaves_its_plan_warns_and_can_be_planned_again():
    module, model, inputs = made("op")
    watcher = schedsim.watch(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watcher:
            module(*inputs).backward()

    def leave():
        with watcher:
            other = torch.zeros(2_000_000) + 1
            module(*inputs).backward()
            del other

    with pytest.warns(PlanLeftWarning, match="step 2 took"):
        leave()
    plan = watcher(*inputs, budget="90%")
    assert plan.budget_bytes > watcher.module.plan.peak_bytes - 1
    assert module.plan is plan
    with untouched(model):
        module(*inputs)
