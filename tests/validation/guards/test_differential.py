"""The plain step and the planned one from the same start, and what differs between them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.guards.differential import Both  # noqa: E402
from schedsim.validation.guards.float64_step import Float64Step, in_float64  # noqa: E402
from schedsim.validation.guards.recording import record  # noqa: E402
from torch import nn  # noqa: E402


def a_line():
    """A model that both levels can plan, and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    return model, torch.randn(64, 8), torch.randn(64, 8)


def test_each_difference_is_named_and_all_state_is_put_back():
    model, x, target = a_line()
    model.append(nn.BatchNorm1d(8))
    both = Both(model, F.mse_loss, None)

    def plain(x, target):
        return F.mse_loss(model(x), target)

    def scaled(x, target):
        return 1.001 * plain(x, target)

    def drawing(x, target):
        torch.rand(1)
        return plain(x, target)

    def twice(x, target):
        plain(x, target)
        return plain(x, target)

    def failing(x, target):
        raise RuntimeError("no kernel")

    def rounding(x, target):
        return plain(x, target) * (1 + 1e-6)

    before = [p.clone() for p in model.state_dict().values()]
    state = torch.get_rng_state()
    given = (x, target), {}
    assert both.difference(plain, plain, *given) is None
    assert "the loss is off by 1.0e-03" in str(both.difference(plain, scaled, *given))
    assert "generator stands elsewhere" in str(both.difference(plain, drawing, *given))
    assert "buffer 4.running_mean" in str(both.difference(plain, twice, *given))
    assert "no kernel" in str(both.difference(plain, failing, *given))
    found = both.difference(plain, rounding, *given)
    assert found is not None
    assert found.rounding
    assert both.difference(plain, rounding, *given, rounded=True) is None
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


class Observed(nn.Linear):
    """Keeps the least entry of each column, in a buffer that is empty until the first batch."""

    def __init__(self):
        super().__init__(8, 8)
        self.register_buffer("least", torch.empty(0))

    def forward(self, x):
        with torch.no_grad():
            torch.amin(x, 0, out=self.least)
        return super().forward(x)


def test_buffers_that_a_step_enlarges_are_put_back():
    model, (_, x, target) = Observed(), a_line()
    both = Both(model, F.mse_loss, None)
    step = lambda x, target: F.mse_loss(model(x), target)  # noqa: E731
    assert both.difference(step, step, (x, target), {}) is None
    assert model.least.shape == (0,)


@pytest.mark.parametrize(("size", "noise"), [(1e-8, True), (4e-6, True), (1e-5, False)])
def test_a_gradient_that_is_zero_but_for_rounding_has_no_digits_to_agree_in(size, noise):
    """As of the bias of keys: a softmax takes it out, and what is left is rounding."""
    torch.manual_seed(0)
    model, x, target = nn.Linear(8, 8), torch.randn(64, 8), torch.randn(64, 8)
    whole = nn.Sequential(model)
    both = Both(whole, F.mse_loss, None)

    def with_bias(share):
        def step(x, target):
            nothing = (model.bias - model.bias.detach()).sum()
            return F.mse_loss(F.linear(x, model.weight), target) + share * nothing

        return step

    weight = torch.autograd.grad(with_bias(0.0)(x, target), model.weight)[0]
    largest = float(weight.abs().max())
    found = both.difference(with_bias(size * largest), with_bias(-size * largest), (x, target), {})
    assert found is not None
    assert "the gradient of 0.bias" in str(found)
    assert found.rounding == noise


@pytest.mark.parametrize("cancels", [True, False])
def test_a_gradient_under_autocast_is_rounding_where_float64_gives_zero(cancels):
    """As of a convolution's bias in front of a batch norm: half a hundredth of those beside it."""
    torch.manual_seed(0)
    model, x, target = nn.Linear(8, 8), torch.randn(64, 8), torch.randn(64, 8)
    both = Both(nn.Sequential(model), F.mse_loss, None)

    def with_bias(share):
        def step(x, target):
            with torch.autocast("cpu", torch.bfloat16):
                made = F.linear(x, model.weight).float()
            return F.mse_loss(made, target) + share * model.bias.sum()

        return step

    weight = torch.autograd.grad(with_bias(0.0)(x, target), model.weight)[0]
    off = 5e-3 * float(weight.abs().max())
    wide = both.results(with_bias(0.0 if cancels else off), (x, target), {})
    exact = Float64Step(lambda _nudge: {name: tensor.double() for name, tensor in wide.items()})
    steps = with_bias(off), with_bias(-off)
    found = both.difference(*steps, (x, target), {}, rounded=True, exact=exact)
    assert (found is None) == cancels


class Halved(nn.Module):
    """Products in bfloat16, inside of a model in float32; their gradients are off by a share."""

    def __init__(self, coarse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.coarse, self.off = nn.Linear(16, 16), coarse, 0.0

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.coarse):
            y = self.inner(x).float()
        shift = (
            self.off * torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        ).detach()
        return y + shift * y.detach().abs().amax()


@pytest.mark.parametrize("wide", [True, False])
def test_a_step_in_half_precision_has_the_digits_of_that_format(wide):
    """Under autocast within the model, which gradients in float32 do not show."""
    x, target = torch.randn(64, 16), torch.randn(64, 16)

    def difference(coarse, off):
        model = Halved(coarse)

        def plain(x, target):
            model.off = 0.0
            return F.mse_loss(model(x), target)

        def planned(x, target):
            model.off = off
            return F.mse_loss(model(x), target)

        def in_wide(nudge):
            other, loss = in_float64((model, F.mse_loss), nudge)
            other.off, other.coarse = 0.0, False
            both = Both(other, loss, None)
            return both.results(
                lambda x, t: loss(other(x), t), *in_float64(((x, target), {}), nudge)
            )

        exact = Float64Step(in_wide) if wide else None
        both = Both(model, F.mse_loss, None)
        return both.difference(plain, planned, (x, target), {}, rounded=True, exact=exact)

    assert difference(True, 2e-3) is None
    assert difference(False, 2e-3) is not None
    assert difference(True, 0.3) is not None


def test_a_step_whose_backward_bears_no_mode_is_compared_all_the_same():
    """`torch.cond`, in a step that may round otherwise."""
    model, x, target = a_line()

    def plain(x, target):
        h = torch.cond(x.sum() > 0, lambda h: h.sin(), lambda h: h.cos(), (model(x),))
        return F.mse_loss(h, target)

    def scaled(x, target):
        return plain(x, target) * 1.001

    recorded = record(model, None, (x, target), {}, lambda given, _: plain(*given))
    assert recorded.branches
    both = Both(model, F.mse_loss, recorded)
    assert both.difference(plain, plain, (x, target), {}, rounded=True) is None
    found = both.difference(plain, scaled, (x, target), {}, rounded=True)
    assert "the loss is off by 1.0e-03" in str(found)
