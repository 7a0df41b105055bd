"""Gradients that a loop keeps, with the loss inside: they are counted without being told."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import (  # noqa: E402
    PlainStepWarning,
    ReplannedWarning,
)
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH, BATCH = 96, 192
"""Gradients take about as much as activations."""


def given():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5)))
    return model, torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def mean_square(output, target):
    return (output - target).square().mean()


def train(model, step, keeps):
    """Four steps; gradients are set to zero in place, or summed over two steps each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for k in range(4):
        step().backward()
        if keeps == "zeros":
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        elif k % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("level", "keeps"),
    [
        ("op", "sums"),
        pytest.param("op", "zeros", marks=pytest.mark.slow),
        pytest.param("block", "sums", marks=pytest.mark.slow),
    ],
)
def test_the_budget_holds_with_gradients_from_the_step_before(level, keeps):
    """The first step that finds gradients is planned anew, with a line; peaks are measured."""
    model, x, target = given()
    plain = copy.deepcopy(model)
    expected = train(plain, lambda: mean_square(plain(x), target), keeps)
    resident = storage_bytes([*model.parameters(), x, target])
    least = resident + 2 * storage_bytes([*model.parameters()])
    budget = least + 5 * storage_bytes([x])
    module = schedsim.rematerialize(
        model, (x, target), budget, mean_square, level=level, effort=0.1
    )
    assert module.plan.peak_bytes <= budget
    first = copy.deepcopy(model.state_dict())
    with pytest.warns(ReplannedWarning, match="gradients stay"):
        train(model, lambda: module(x, target), keeps)
    model.load_state_dict(first)
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [reading] = AllocatorMeter().read(lambda: train(model, lambda: module(x, target), keeps))
    assert reading.peak_bytes + resident <= budget
    assert all(map(torch.equal, reading.result, expected))


@pytest.mark.slow
def test_a_budget_without_room_for_kept_gradients_is_told():
    """In one line that names the least budget, at the first step that finds them; it goes on."""
    model, x, target = given()
    least = storage_bytes([*model.parameters(), x, target]) + storage_bytes([*model.parameters()])
    budget = least + 3 * storage_bytes([x])
    module = schedsim.rematerialize(model, (x, target), budget, mean_square, level="op", effort=0.1)
    plan = module.plan
    module(x, target).backward()
    with pytest.warns(PlainStepWarning, match="no plan that counts them fits below [0-9]+ bytes"):
        module(x, target).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x, target).backward()
    assert module.plans == [plan]
    model.zero_grad()
    for _ in range(4):
        mean_square(model(x), target).backward()
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for _ in range(4):
        module(x, target).backward()
    assert all(map(torch.equal, once, (p.grad for p in model.parameters())))


def test_an_applied_plan_stays_and_says_what_it_counts():
    model, x, target = given()
    made = schedsim.rematerialize(model, (x, target), "100%", mean_square, level="op", effort=0.1)
    module = schedsim.apply(model, made.plan, (x, target), mean_square)
    module(x, target).backward()
    with pytest.warns(PlainStepWarning, match="made with keep_gradients=True"):
        module(x, target).backward()
    assert module.plans == [made.plan]
