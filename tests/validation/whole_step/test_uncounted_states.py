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


def trained(share, *, num_steps=3, loaded=None, **options):
    """The lines of steps within a share of the store-all peak, in bytes, from a `loaded` state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x, target = torch.randn(64, 64), torch.randn(64, 64)
    most = schedsim.rematerialize(model, (x, target), "100%", nn.functional.mse_loss, check="never")
    budget = int(share * most.plan.peak_bytes) if options.pop("in_bytes", True) else "100%"
    step = schedsim.rematerialize(
        model, (x, target), budget, nn.functional.mse_loss, check="never", effort=0.02, **options
    )
    optimizer = torch.optim.Adam(model.parameters())
    if loaded is not None:
        optimizer.load_state_dict(loaded)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(num_steps):
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


def test_a_state_that_was_loaded_is_told_of_before_the_first_step_of_its_optimizer():
    """The first step of a run that goes on exceeded its budget by it without a word."""
    twin = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(twin.parameters())
    twin(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    [line] = trained(1.1, num_steps=1, loaded=optimizer.state_dict())
    assert format_bytes(2 * PARAMETERS + 4 * 4) in line
