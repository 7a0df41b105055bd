"""Inputs that are no tensors: what an object or array holds is part of the graph, and watched."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


class Scale:
    """An object of the loop's, whose text does not tell what it holds."""

    def __init__(self, factor):
        self.factor = factor

    def __repr__(self):
        return "Scale()"


class Scaled(nn.Module):
    """Multiplied by a number of an object, or by an array."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1500, 8)

    def forward(self, x, by):
        if isinstance(by, Scale):
            return self.fc(x).relu() * by.factor
        return self.fc(x * torch.tensor(by)).relu()


X = torch.randn(16, 1500)


def mean_square(y):
    return y.square().mean()


def outcome(model, loss):
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [loss.detach(), *gradients]


def put_factor(by, number):
    by.factor = number


def put_entry(by, number):
    by[700] = number  # in the midst, where its text has dots


@pytest.mark.parametrize(
    ("by", "put"), [(Scale(1.0), put_factor), (np.ones(1500, np.float32), put_entry)]
)
def test_what_an_input_holds_may_change(by, put):
    """It is seen before the step, and the step is planned anew; its former plan comes back."""
    torch.manual_seed(0)
    model = Scaled()
    plain = copy.deepcopy(model)
    step = schedsim.rematerialize(model, (X, by), "150%", loss=mean_square, level="op", effort=0.2)
    put(by, 3.0)
    with pytest.warns(ReplannedWarning, match="input 1"):
        loss = step(X, by)
    assert all(map(torch.equal, outcome(plain, mean_square(plain(X, by))), outcome(model, loss)))
    for number in (1.0, 3.0):
        put(by, number)
        expected = outcome(plain, mean_square(plain(X, by)))
        assert all(map(torch.equal, expected, outcome(model, step(X, by))))


def test_another_array_is_refused():
    """In a line that says so, not in one of numpy's."""
    by = np.ones(1500, np.float32)
    step = schedsim.rematerialize(
        Scaled(), (X, by), "150%", loss=mean_square, level="op", effort=0.2
    )
    step(X, by.copy())
    other = by.copy()
    other[700] = 2.0
    with pytest.raises(SchedsimError, match="was captured") as caught:
        step(X, other)
    assert "give a tensor" in caught.value.hint
