"""The plain step in float64: a step that is off from the plain one, and more exact, is right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.guards.differential import Both  # noqa: E402
from schedsim.validation.guards.float64_step import Float64Step, in_float64  # noqa: E402
from torch import nn  # noqa: E402


class Cancelling(nn.Module):
    """A gradient that float32 loses in a sum, where the order of additions decides."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.in_order = True

    def forward(self, x):
        y = self.weight * x
        first, second = (1e6, -1e6) if self.in_order else (-1e6, 1e6)
        if self.in_order:
            return (y + first) + second
        return y + (first + second)


def steps_of(model):
    def plain(x, target):
        model.in_order = True
        return F.mse_loss(model(x), target)

    def planned(x, target):
        model.in_order = False
        try:
            return F.mse_loss(model(x), target)
        finally:
            model.in_order = True

    return plain, planned


def reference(model, inputs):
    def results():
        wide = in_float64(model)
        plain, _ = steps_of(wide)
        return Both(wide, F.mse_loss, None).results(plain, in_float64(inputs), {})

    return Float64Step(results)


@pytest.fixture
def cancelling():
    torch.manual_seed(0)
    return Cancelling(), (torch.randn(4), torch.randn(4))


def test_the_more_exact_step_is_accepted_and_the_less_exact_one_is_not(cancelling):
    model, inputs = cancelling
    both = Both(model, F.mse_loss, None)
    plain, planned = steps_of(model)
    off = both.difference(plain, planned, inputs, {}, rounded=True)
    assert off is not None
    assert not off.rounding
    exact = reference(model, inputs)
    assert both.difference(plain, planned, inputs, {}, rounded=True, exact=exact) is None
    assert exact.accepted == 2  # the loss and the gradient
    assert exact.planned_off < 1e-6 < exact.plain_off
    # The other way round: what float32 loses is the planned step's loss of digits now.
    exact = reference(model, inputs)
    found = both.difference(planned, plain, inputs, {}, rounded=True, exact=exact)
    assert found is not None
    assert not found.rounding
    assert not exact.accepted


@pytest.mark.parametrize("factor", [1.1, -1.0, float("nan")])
def test_a_wrong_step_is_refused_even_if_the_plain_one_is_inexact(cancelling, factor):
    model, inputs = cancelling
    plain, planned = steps_of(model)

    def wrong(x, target):
        return factor * planned(x, target)

    both = Both(model, F.mse_loss, None)
    found = both.difference(plain, wrong, inputs, {}, rounded=True, exact=reference(model, inputs))
    assert found is not None
    assert not found.rounding


def test_nothing_is_accepted_where_the_step_does_not_run_in_float64(cancelling):
    model, inputs = cancelling
    plain, planned = steps_of(model)

    def fails():
        raise TypeError("float32 alone")

    both = Both(model, F.mse_loss, None)
    found = both.difference(plain, planned, inputs, {}, rounded=True, exact=Float64Step(fails))
    assert found is not None


def test_a_step_in_float64_has_nothing_more_exact(cancelling):
    model, inputs = in_float64(cancelling)
    plain, planned = steps_of(model)

    def scaled(x, target):
        return 1.001 * planned(x, target)

    both = Both(model, F.mse_loss, None)
    exact = reference(model, inputs)
    assert both.difference(plain, scaled, inputs, {}, rounded=True, exact=exact) is not None


def test_the_model_and_inputs_stay_in_their_own_format(cancelling):
    model, inputs = cancelling
    inputs[0].requires_grad_()
    wide, (x, _) = in_float64((model, inputs))
    assert wide.weight.dtype == x.dtype == torch.float64
    assert x.requires_grad
    assert model.weight.dtype == inputs[0].dtype == torch.float32
