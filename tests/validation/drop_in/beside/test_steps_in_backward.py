"""Optimizers that step in hooks of gradients, each for one parameter, as torch's tutorial does."""

from __future__ import annotations

import gc
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.units import format_bytes  # noqa: E402

WIDTH, DEPTH = 64, 6


def model_and_batch():
    torch.manual_seed(0)
    layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]
    model = nn.Sequential(*(layer for pair in layers for layer in pair))
    return model, torch.randn(128, WIDTH), torch.randn(128, WIDTH)


def step_in_backward(model, make):
    optimizers = {it: make([it]) for it in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return optimizers


@pytest.mark.slow
def test_states_that_are_made_in_a_backward_count_once():
    """The step that made them told of them as code, beside which they were resident, too.

    So a budget was refused of which steps take nine tenths, and then the one that was named.
    """
    model, x, target = model_and_batch()
    budget = int(6.2 * storage_bytes(list(model.parameters())))
    optimizers = step_in_backward(model, torch.optim.Adam)
    gc.collect()
    options = {"effort": 0.1, "check": "never", "extra_bytes": target.nbytes}
    schedsim.rematerialize(model, x, budget, in_place=True, **options)
    loss = None

    def step():
        nonlocal loss
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(6):
            step()
    lines = [str(it.message) for it in said if issubclass(it.category, UserWarning)]
    assert not [it for it in lines if "in front of" in it or "first steps" in it]
    loss = None
    [reading] = AllocatorMeter().read(step)
    held = [x, target, *model.parameters(), *(dict(it.state) for it in optimizers.values())]
    assert 0.8 * budget < storage_bytes(held) + reading.peak_bytes <= budget


def test_first_steps_are_told_of_by_all_that_no_plan_knew():
    """A target and the storage of a loss may exceed a budget which neither does by itself."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(8, 16)
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    torch.compile(model, backend="schedsim", options=options)(x).sum().backward()
    session = session_of(options)
    session._resident.made.num_bytes = 300
    session._front_at_start, session._held.in_front_bytes = 100, 350
    for budget, is_told in ((1550, False), (1549, True)):
        session._front_peak = 1000
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            session._tell_made(budget)
        lines = [str(it.message) for it in said if it.category is PlainStepWarning]
        assert len(lines) == is_told
        assert all(f"taken up to {format_bytes(1550)}" in it for it in lines)
