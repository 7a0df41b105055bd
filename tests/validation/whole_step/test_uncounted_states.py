"""States of optimizers that no plan of a whole step counts, as it was made without `optimizer`."""

from __future__ import annotations

import warnings

import pytest
import torch
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn

import schedsim
from schedsim.units import format_bytes

PARAMETERS = 2 * (64 * 64 + 64) * 4


def trained(share, **options):
    """The lines of three steps within a share of the store-all peak, in bytes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x, target = torch.randn(64, 64), torch.randn(64, 64)
    most = schedsim.rematerialize(model, (x, target), "100%", nn.functional.mse_loss, check="never")
    budget = int(share * most.plan.peak_bytes) if options.pop("in_bytes", True) else "100%"
    step = schedsim.rematerialize(
        model, (x, target), budget, nn.functional.mse_loss, check="never", effort=0.02, **options
    )
    optimizer = torch.optim.Adam(model.parameters())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            step(x, target).backward()
            optimizer.step()
    return [str(it.message) for it in said if it.category is PlainStepWarning]


def test_states_that_take_a_step_over_its_budget_are_told_of_once():
    [line] = trained(1.1)
    assert "states of Adam are not counted" in line
    assert format_bytes(2 * PARAMETERS + 4 * 4) in line  # and the count of steps of each
    assert 'optimizer="adamw"' in line


@pytest.mark.parametrize(
    "options",
    [{"share": 3}, {"share": 3, "optimizer": "adamw"}, {"share": 1.1, "in_bytes": False}],
    ids=["there is room", "they are counted", "a share is one of what counts"],
)
def test_nothing_is_told_where(options):
    assert trained(**options) == []


def test_extra_bytes_may_stand_for_them():
    assert trained(3, extra_bytes=3 * PARAMETERS) == []
