"""A loop calls backward() outside of autocast, or within it: the plain step to the bit in both."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.autocasts import (  # noqa: E402
    Autocast,
    backward_autocast,
    backward_within,
    run_backward,
)
from schedsim.validation.guards.plan_variants import (  # noqa: E402
    ReplannedWarning,
    RoundingWarning,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

BF16 = Autocast((("cpu", torch.bfloat16),))


def casting():
    return torch.autocast("cpu", torch.bfloat16)


class Attention(nn.Module):
    """Its backward takes products of float32 by an op of its own, which autocast casts."""

    def __init__(self, width=32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


def loss_of(y, target):
    return nn.functional.mse_loss(y.float(), target)


X, TARGET = torch.randn(4, 24, 32), torch.randn(4, 24, 32)


def outcome(model, loss, seed, inside):
    """The loss and the gradients of a step whose backward runs `inside` autocast, or outside."""
    torch.manual_seed(seed)
    with casting():
        found = loss()
        if inside:
            found.backward()
    if not inside:
        found.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [found.detach(), *gradients]


@pytest.fixture(name="models")
def two_models():
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention())
    return model, copy.deepcopy(model)


def planned(model, form):
    with casting():
        if form == "in place":
            schedsim.rematerialize(model, X, "90%", in_place=True, effort=0.2, background=False)
            return lambda: loss_of(model(X), TARGET)
        step = schedsim.rematerialize(
            model, (X, TARGET), "90%", loss=loss_of, level=form, effort=0.2
        )
        return lambda: step(X, TARGET)


@pytest.mark.parametrize("form", ["op", "block", pytest.param("in place", marks=pytest.mark.slow)])
def test_backward_outside_is_the_plain_one(models, form):
    """As torch advises: nothing is said, and nothing is planned anew."""
    model, plain = models
    step = planned(model, form)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingWarning)
        warnings.simplefilter("error", ReplannedWarning)
        for seed in range(3):
            found = outcome(model, step, seed, False)
            expected = outcome(plain, lambda: loss_of(plain(X), TARGET), seed, False)
            assert all(map(torch.equal, expected, found))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["op", "block", pytest.param("in place", marks=pytest.mark.slow)])
def test_backward_inside_is_the_plain_one_from_the_second_step_on(models, form):
    """The first step is said to be within rounding, unless it is equal to the bit."""
    model, plain = models
    step = planned(model, form)
    assert not equal_in_both_places(plain)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed in range(4):
            found = outcome(model, step, seed, True)
            expected = outcome(plain, lambda: loss_of(plain(X), TARGET), seed, True)
            rounded = sum(issubclass(line.category, RoundingWarning) for line in said)
            assert all(map(torch.equal, expected, found)) or (seed == 0 and rounded == 1)
    assert rounded <= 1


def equal_in_both_places(plain):
    one, other = (
        outcome(plain, lambda: loss_of(plain(X), TARGET), 0, inside) for inside in (False, True)
    )
    return all(map(torch.equal, one, other))


def test_a_repeated_forward_does_not_cast_because_the_backward_does():
    """The forward is outside of autocast, and the backward, which repeats it, within."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(5))
    model = nn.Sequential(*blocks)
    plain, x = copy.deepcopy(model), torch.randn(256, 16)
    step = schedsim.rematerialize(
        model, x, "70%", loss=lambda y: y.square().mean(), level="block", effort=0.2
    )
    ones, others = step(x), plain(x).square().mean()
    with casting():
        ones.backward()
        others.backward()
    assert max(step.run_counts.values()) > 1
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


def test_autocast_is_entered_and_left():
    """Also where it is off, and inside of another."""
    linear, x = nn.Linear(2, 2), torch.randn(3, 2)
    off = Autocast.now()
    assert off == Autocast()
    assert str(off) == "outside of autocast"
    with casting():
        assert Autocast.now() == BF16
        assert str(BF16) == "within autocast (cpu to bfloat16)"
        with off.entered():
            assert linear(x).dtype is torch.float32
    with BF16.entered():
        assert linear(x).dtype is torch.bfloat16
        assert not torch.is_autocast_cache_enabled()
    assert Autocast.now() == off


def test_a_backward_is_run_where_the_loop_is_taken_to_run_it():
    """Wherever it is called."""
    seen = []

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(Autocast.now())
            return gradient

    with casting():
        run_backward(Seeing.apply(torch.ones((), requires_grad=True)))
    with backward_within(BF16):
        assert backward_autocast() == BF16
        run_backward(Seeing.apply(torch.ones((), requires_grad=True)))
    assert seen == [Autocast(), BF16]
