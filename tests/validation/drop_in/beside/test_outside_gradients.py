"""Steps of optimizers by gradients that no graph has made: said, with bytes once measured."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH = 32
BUDGET = 200_000


def lines_of(loop, *, steps=8):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)])
    x = torch.randn(16, WIDTH)
    schedsim.rematerialize(model, x, BUDGET, in_place=True, effort=0.1, check="never")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(steps):
            loop(i, model, x, optimizer)
    return [str(one.message) for one in said if one.category is PlainStepWarning]


def step(model, x, optimizer):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def penalty(model, rows, optimizer):
    x = torch.randn(rows, WIDTH, requires_grad=True)
    given = x
    for layer in model:  # as `model.forward` does of a model that the backend compiles
        given = layer(given)
    (gradient,) = torch.autograd.grad(given.sum(), x, create_graph=True)
    optimizer.zero_grad()
    gradient.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("rows", [16, 2048])
def test_a_penalty_beside_the_graphs_is_said_with_its_bytes_where_it_is_over(rows):
    def loop(i, model, x, optimizer):
        step(model, x, optimizer)
        if i % 2 == 0:
            penalty(model, rows, optimizer)

    first, *others = lines_of(loop)
    assert "gradients that no graph has made" in first
    assert "not within the budget" in first
    assert len(others) == (rows > 16)
    # The penalty's graph holds at least what each of three layers gives, and its derivative.
    for line in others:
        kilobytes = float(line.split("takes about ")[1].split(" ")[0]) * 1000
        assert "over the budget of 200.0 kB" in line
        assert kilobytes > 2 * 3 * rows * WIDTH * 4 / 1000


def accumulating(i, model, x, optimizer):
    model(x).square().mean().backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def stepping_twice(i, model, x, optimizer):
    step(model, x, optimizer)
    optimizer.step()


def with_a_second_optimizer(i, model, x, optimizer):
    step(model, x, optimizer)
    torch.optim.SGD(model.parameters(), lr=0.01).step()


def sharpness_aware(i, model, x, optimizer):
    step(model, x, optimizer)
    step(model, x, optimizer)


@pytest.mark.parametrize(
    "loop", [accumulating, stepping_twice, with_a_second_optimizer, sharpness_aware]
)
def test_gradients_of_graphs_bring_no_line(loop):
    assert not any("no graph has made" in line for line in lines_of(loop, steps=6))
