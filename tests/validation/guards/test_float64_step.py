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
    def results(nudge):
        wide = in_float64(model, nudge)
        plain, _ = steps_of(wide)
        return Both(wide, F.mse_loss, None).results(plain, in_float64(inputs, nudge), {})

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

    def fails(_nudge):
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


class NormalisedTwice(nn.Module):
    """Numbers whose mean is zero, and whose mean is a buffer: another order gives other roundings.

    Attributes
    ----------
    way
        How the mean is computed: ``"plain"``, in another order, or wrongly.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))
        self.way = "plain"

    def forward(self, x):
        y = x - x.mean(0)
        mean = y.flip(0).cumsum(0)[-1] if self.way == "other order" else y.cumsum(0)[-1]
        if self.way == "wrong":
            mean = mean + 1e-3
        with torch.no_grad():
            self.mean.copy_(mean / len(x))
        return y * self.weight


@pytest.mark.parametrize("seed", range(4))
def test_a_buffer_that_is_zero_but_for_rounding_has_no_digits_to_agree_in(seed):
    """Neither rounding of it is the better one, and a number that is no rounding is refused."""
    torch.manual_seed(seed)
    model, x = NormalisedTwice(), torch.randn(257, 4)

    def step_of(module, way):
        def step(x):
            module.way = way
            return module(x).square().mean()

        return step

    def results(nudge):
        wide = in_float64(model, nudge)
        return Both(wide, None, None).results(step_of(wide, "plain"), in_float64((x,), nudge), {})

    def difference(one, other):
        both, exact = Both(model, None, None), Float64Step(results)
        steps = step_of(model, one), step_of(model, other)
        return both.difference(*steps, (x,), {}, rounded=True, exact=exact)

    assert difference("plain", "other order") is None
    assert difference("other order", "plain") is None
    assert "buffer mean" in str(difference("plain", "wrong"))


def difference(model, x, way):
    """What differs between the plain step of `model` and that in `way`, and what judged it."""

    def step_of(module, way):
        def step(x):
            module.way = way
            return module(x)

        return step

    def results(nudge):
        wide = in_float64(model, nudge)
        return Both(wide, None, None).results(step_of(wide, "plain"), in_float64((x,), nudge), {})

    both, exact = Both(model, None, None), Float64Step(results)
    steps = step_of(model, "plain"), step_of(model, way)
    return both.difference(*steps, (x,), {}, rounded=True, exact=exact), exact


class GateAtZero(nn.Module):
    """A gate whose input is zero but for rounding: another order of additions closes it.

    Attributes
    ----------
    way
        How the input is added up: ``"plain"``, in another order, or with a wrong result behind it.
    """

    def __init__(self, x):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4) + 0.5)
        one_ulp = 2.0**-22
        self.threshold = float((self.weight.detach() * x).sum()) - one_ulp
        self.way = "plain"

    def forward(self, x):
        y = self.weight * x
        gap = y.sum() - self.threshold
        if self.way == "other order":
            gap = gap - 2.0**-21
        out = y.sum() + 0.01 * (gap > 0) * y.square().sum()
        return out * (1.05 if self.way == "wrong" else 1.0)


@pytest.mark.parametrize("mask", [None, torch.tensor([True, False]), torch.tensor([1, 2])])
def test_a_gate_that_rounding_opens_or_closes_is_no_difference(mask):
    """The plain step has the side of float64 by chance, and a nudge of its numbers the other.

    Buffers of other than real numbers have no digits, and are not asked for any.
    """
    torch.manual_seed(0)
    x = torch.rand(4) + 0.5
    model = GateAtZero(x)
    if mask is not None:
        model.register_buffer("mask", mask)
    assert 2 < model.threshold < 4  # where a unit in the last place is 2**-22

    found, exact = difference(model, x, "other order")
    assert found is None
    assert exact.nudged_off > 1e-3 > 1e-6 > exact.plain_off
    found, exact = difference(model, x, "wrong")
    assert found is not None
    assert not exact.accepted


class Turned(nn.Module):
    """Complex weights, whose product is summed in one of two orders."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64))
        self.backwards = False

    def forward(self, x):
        rows = self.weight * x[:, None]
        return (rows.flip(1) if self.backwards else rows).cumsum(1)[:, -1]


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_complex_results_are_compared_within_rounding_too(factor):
    """Without a step in float64, and by one where they are off by more."""
    torch.manual_seed(0)
    model, x = Turned(), torch.randn(16, dtype=torch.complex64)
    both = Both(model, None, None)

    def plain(x):
        return model(x).abs().square().sum()

    def planned(x):
        model.backwards = True
        try:
            return plain(x) * factor
        finally:
            model.backwards = False

    found = both.difference(plain, planned, (x,), {}, rounded=True)
    assert (found is None) == (factor == 1.0)
    wide = in_float64(model, 0)
    assert wide.weight.dtype is torch.complex128
    assert not torch.equal(wide.weight, model.weight)
    assert torch.equal(in_float64(model).weight.to(torch.complex64), model.weight)
    assert in_float64((x,))[0].dtype is torch.complex128


def test_whole_numbers_have_no_digits_that_float64_would_settle():
    """A count that is off is refused, whatever the rest does."""
    exact = Float64Step(lambda _nudge: {"count": torch.tensor([1, 2])})
    assert not exact.accepts("count", torch.tensor([1, 2]), torch.tensor([1, 3]), 1e-5)


class Routed(nn.Module):
    """Each row goes to one of two experts; for one row, rounding alone tells which.

    Attributes
    ----------
    way
        ``"plain"``, ``"other order"`` of additions, which turns that row, or ``"wrong"``, whose
        gradients are as far off as then.
    """

    def __init__(self, x):
        super().__init__()
        self.router = nn.Parameter(torch.rand(4) + 0.5)
        self.experts = nn.Parameter(torch.randn(2, 4))
        one_ulp = 2.0**-22
        self.threshold = float((self.router.detach() * x[0]).sum()) - one_ulp
        self.way = "plain"

    def forward(self, x):
        gap = (x * self.router).sum(1) - self.threshold
        if self.way == "other order":
            gap = gap - 2.0**-21
        chosen = (gap > 0).long()
        out = ((x * self.experts[chosen]).sum(1) * gap.sigmoid()).square().sum()
        return out * (0.7 if self.way == "wrong" else 1.0)


def test_a_row_that_rounding_sends_to_another_expert_is_no_difference():
    """Gradients of experts are then far off, and those of a step with nudged numbers as well."""
    torch.manual_seed(0)
    x = torch.rand(3, 4) + 0.5
    model = Routed(x)

    found, exact = difference(model, x, "other order")
    assert found is None
    assert exact.nudged_off > 0.1
    found, exact = difference(model, x, "wrong")
    assert found is not None
    assert not exact.accepted


@pytest.mark.parametrize(
    ("off", "of_torch_compile", "is_accepted"),
    [
        (4e-4, 4e-4, True),
        (4e-4, 3e-4, True),  # another order of additions
        (1e-3, 4e-4, False),  # as of a term that is left out
        (4e-4, 1e-5, False),
        (5e-2, 5e-2, False),  # no rounding, whoever shares it
        (4e-4, float("nan"), False),
        (4e-4, None, False),  # torch.compile fails
    ],
)
def test_a_sum_that_cancels_may_be_off_as_torch_compiles_own(off, of_torch_compile, is_accepted):
    exact = torch.tensor([1.0, 0.5], dtype=torch.float64)

    def by_torch_compile():
        if of_torch_compile is None:
            raise RuntimeError("no compiler")
        return {"sum": (exact * (1 + of_torch_compile)).float()}

    step = Float64Step(lambda _nudge: {"sum": exact}, by_torch_compile)
    planned = (exact * (1 - off)).float()
    assert step.accepts("sum", exact.float(), planned, 1e-4) is is_accepted
    assert (step.compiled_off > 0) is is_accepted


def test_torch_compile_is_run_only_where_nothing_else_accepts():
    exact = torch.tensor([1.0, 0.5], dtype=torch.float64)
    runs = []
    step = Float64Step(lambda _nudge: {"sum": exact}, lambda: runs.append(1) or {})
    assert step.accepts("sum", exact.float(), (exact * (1 + 5e-5)).float(), 1e-4)
    assert not step.accepts("sum", exact.float(), (exact * 1.05).float(), 1e-4)
    assert not runs
    assert not step.accepts("sum", exact.float(), (exact * 1.001).float(), 1e-4)
    assert not step.accepts("sum", exact.float(), (exact * 1.001).float(), 1e-4)
    assert len(runs) == 1


class Grouped(nn.Module):
    """A grouped product, which torch computes of no float64."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, x, ends):
        return torch._grouped_mm(x, self.weight, offs=ends).square().sum()


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_a_step_with_grouped_products_runs_in_float64():
    torch.manual_seed(0)
    model, given = Grouped(), (torch.randn(8, 8), torch.tensor([4, 8], dtype=torch.int32))

    def results(nudge):
        wide = in_float64(model, nudge)
        return Both(wide, None, None).results(wide, in_float64(given, nudge), {})

    exact = Float64Step(results)
    assert exact.knows("the gradient of weight")
    expected = [given[0][4 * i : 4 * i + 4].double() for i in range(2)]
    weight = model.weight.detach().double().requires_grad_()
    sum((rows @ weight[i]).square().sum() for i, rows in enumerate(expected)).backward()
    torch.testing.assert_close(exact._exact["the gradient of weight"], weight.grad)
