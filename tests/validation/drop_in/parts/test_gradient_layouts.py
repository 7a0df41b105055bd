"""Gradients that come in other strides than the outputs have: the plain step to the bit."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402

CLASSES = 37


class Net(nn.Module):
    """Residual blocks with dropout, and a head for each token."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(3)
        )
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, CLASSES)

    def forward(self, x):
        for layer in self.layers:
            x = x + self.drop(layer(x))
        return self.head(x)


def across(y, target):
    """The gradient comes transposed."""
    return nn.functional.cross_entropy(y.transpose(1, 2) * 1.5, target)


def total(y, target):
    """All entries of the gradient share one place."""
    return y.float().sum() * 1e-2


def along(y, target):
    """The gradient comes as the output is."""
    return nn.functional.cross_entropy(y.reshape(-1, CLASSES), target.reshape(-1))


def step(model, loss, seed, autocast=False):
    torch.manual_seed(seed)
    x, target = torch.randn(16, 31, 48), torch.randint(0, CLASSES, (16, 31))
    with torch.autocast("cpu", torch.bfloat16, autocast):
        found = loss(model(x), target)
    found.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found.detach(), gradients


def same(ones, others):
    return torch.equal(ones[0], others[0]) and all(map(torch.equal, ones[1], others[1]))


@pytest.mark.slow
@pytest.mark.parametrize("losses", [[total], [along, across, along, across]])
def test_from_the_first_step_on(losses):
    """One more part for each layout that comes, within the budget; the first step is exact, too."""
    another = nn.Linear(4, 4)  # of other sizes, which say nothing about this one's
    schedsim.rematerialize(another, torch.randn(2, 4), "200%", in_place=True, effort=0.2)
    another(torch.randn(2, 4)).sum().backward()
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    [reading] = AllocatorMeter().read(lambda: step(plain, across, 0))
    budget = int(0.75 * (reading.peak_bytes + storage_bytes(model.parameters())))
    schedsim.rematerialize(
        model, torch.randn(16, 31, 48), budget, in_place=True, effort=0.2, background=False
    )
    for number in range(4):
        loss = losses[number % len(losses)]
        assert same(step(model, loss, number), step(plain, loss, number))
    for loss in losses[:2]:
        [reading] = AllocatorMeter().read(lambda: step(model, loss, 9))  # noqa: B023
        assert same(reading.result, step(plain, loss, 9))
        assert reading.peak_bytes + storage_bytes(model.parameters()) <= budget
    assert len(session_in(model).parts) == 2
    assert max(session_in(model).parts[-1].run_counts.values()) > 1


@pytest.mark.slow
def test_under_autocast():
    """The graph is traced again as it was traced first: with its casts."""
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        schedsim.rematerialize(model, torch.randn(16, 31, 48), "90%", in_place=True, effort=0.2)
    for number in range(2):
        ones = step(model, across, number, True)
        assert same(ones, step(plain, across, number, True))
    assert len(session_in(model).parts) == 2


@pytest.mark.slow
def test_by_the_backend_of_torch_compile():
    """Without a session of its own model."""
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="schedsim", options={"budget": "80%", "effort": 0.2})
    for number in range(3):
        assert same(step(compiled, across, number), step(plain, across, number))


@pytest.mark.slow
def test_a_step_that_is_not_followed_is_said(monkeypatch):
    """Where no second trace is possible, gradients are copied, and the step is told of."""
    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, torch.randn(16, 31, 48), "80%", in_place=True, effort=0.2)
    [part] = session_in(model).parts
    monkeypatch.setattr(part.layouts, "_trace", None)
    with pytest.warns(RoundingWarning, match=r"strides \(\(1147, 1, 31\),\)"):
        ones = step(model, across, 3)
    others = step(plain, across, 3)
    assert all(map(torch.allclose, ones[1], others[1]))


class WithScale(Net):
    """Two outputs, of which a loss may read one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        y = super().forward(x)
        scaled = y * self.scale.exp()
        return scaled, nn.functional.normalize(scaled, dim=1).transpose(1, 2)


LOSSES = {
    "first": lambda y, target: across(y[0], target),
    "second": lambda y, target: nn.functional.cross_entropy(4 * y[1], target),
    "both": lambda y, target: along(y[0], target) + y[1].square().mean(),
}


@pytest.mark.slow
@pytest.mark.parametrize("names", [["first"], ["both", "second"]])
def test_outputs_without_a_gradient_add_no_zeros(names):
    """Zeros that are added to a gradient would change its strides, and so the order of sums."""
    torch.manual_seed(0)
    model = WithScale()
    plain = copy.deepcopy(model)
    [reading] = AllocatorMeter().read(lambda: step(plain, LOSSES[names[0]], 0))
    budget = int(0.7 * (reading.peak_bytes + storage_bytes(model.parameters())))
    schedsim.rematerialize(
        model, torch.randn(16, 31, 48), budget, in_place=True, effort=0.2, background=False
    )
    for number in range(4):
        loss = LOSSES[names[number % len(names)]]
        ones, others = step(model, loss, number), step(plain, loss, number)
        assert torch.equal(ones[0], others[0])
        for one, other in zip(ones[1], others[1], strict=True):
            assert torch.equal(one, other)
    for name in names:
        [reading] = AllocatorMeter().read(lambda: step(model, LOSSES[name], 9))  # noqa: B023
        assert same(reading.result, step(plain, LOSSES[name], 9))
        assert reading.peak_bytes + storage_bytes(model.parameters()) <= budget


@pytest.mark.slow
def test_a_schedule_that_repeats_ops_of_the_backward_is_taken_over():
    """Each repeat stays where it is: without them, the backward would take more memory."""
    torch.manual_seed(0)
    model = WithScale()
    schedsim.rematerialize(model, torch.randn(16, 31, 48), 10**9, in_place=True, effort=0.2)
    for _ in range(2):
        step(model, LOSSES["second"], 1)
    part = session_in(model).parts[-1]
    names = list(part.graph.op_names)
    first = names.index(part.seed_name) + 1
    again = [name for name in names[first:] if not part.graph.ops[names.index(name)].once][:5]
    number = part.add(schedsim.Schedule.from_names([*names, *again]))
    zeros = [None, torch.zeros(16, CLASSES, 31)]
    zeros[1] = zeros[1].as_strided(zeros[1].shape, part.given[1].strides)
    other, _ = part.layouts.backward_of(part, number, zeros)
    assert other is not part
    assert len(other.schedules[-1]) - other.graph.num_ops == len(again)


@pytest.mark.slow
@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_gradient_penalty_says_what_to_do(is_in_place):
    """Of all it needs, the second derivative alone must not be by a schedule."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 32), nn.Tanh()) for _ in range(1)))
    model.append(nn.Linear(32, 1))
    plain, x = copy.deepcopy(model), torch.randn(16, 8, requires_grad=True)
    if is_in_place:
        called = schedsim.rematerialize(model, x, "1MiB", in_place=True)
    else:
        called = torch.compile(model, backend="schedsim", options={"budget": "1MiB"})

    def penalty(critic):
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        return slope.square().sum()

    with pytest.raises(UnsupportedError, match="derived again") as refused:
        penalty(called).backward()
    assert "model.forward" in refused.value.hint
    model.zero_grad(set_to_none=True)
    (called(x).square().mean() + penalty(model.forward)).backward()
    (plain(x).square().mean() + penalty(plain)).backward()
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (its.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, its.grad)


class Scaled(torch.autograd.Function):
    """Two products, of which autograd makes zeros where a gradient does not come."""

    @staticmethod
    def forward(ctx, x, first, second):
        ctx.save_for_backward(x, first, second)
        return x * first, x * second

    @staticmethod
    def backward(ctx, one, two):
        x, first, second = ctx.saved_tensors
        return one * first + two * second, (one * x).sum(0), (two * x).sum(0)


class Twofold(nn.Module):
    """Its second output is all that its second parameter makes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(16)) for _ in range(2))

    def forward(self, x):
        return Scaled.apply(torch.tanh(x), self.first, self.second)


@pytest.mark.slow
def test_zeros_of_a_function_of_the_user_stay_zeros():
    """The plain step gives the second parameter zeros, and not none: weight decay acts on it."""
    model, x = Twofold(), torch.randn(8, 16)
    schedsim.rematerialize(model, x, "200%", in_place=True, effort=0.1)
    for _ in range(2):
        model.zero_grad()
        model(x)[0].square().mean().backward()
        assert torch.equal(model.second.grad, torch.zeros(16))
