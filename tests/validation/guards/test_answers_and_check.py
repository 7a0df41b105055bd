"""Values that Python asks of tensors, and the comparison of the planned step with the plain one."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning, ReplannedWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402
from schedsim.errors import SchedsimError, UnsupportedError  # noqa: E402


class Asks(nn.Module):
    """Takes another way where some input is negative; draws and counts before it knows."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        h = self.drop(self.norm(self.linear(x)))
        return torch.tanh(h) if (x >= 0).all() else torch.relu(h) * int((x.argmax() % 3).item())


def left(model, run):
    """Loss, gradients, buffers and the next random number of a step from seed 3."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = run()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    return [loss.detach(), *gradients, *(b.clone() for b in model.buffers()), torch.rand(())]


def test_answers_are_those_of_the_step_or_another_plan_is_taken():
    """Three answers, each asked for twice: three plans, and every step is the plain one's."""
    torch.manual_seed(0)
    model, other = Asks(), Asks()
    other.load_state_dict(model.state_dict())
    first = torch.rand(1024, 8)
    batches = [first, first - 0.5, (first - 0.5).roll(1), first + 1]
    target = torch.randn(1024, 8)
    module = schedsim.rematerialize(model, (first, target), "120%", F.mse_loss, effort=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in (*batches, *batches):
            found = left(model, lambda x=x: module(x, target))
            expected = left(other, lambda x=x: F.mse_loss(other(x), target))
            assert all(map(torch.equal, found, expected))
    assert module.level == "op"
    kinds = [w.category for w in caught if issubclass(w.category, UserWarning)]
    answers = {int(x.argmax() % 3) for x in batches[1:3]}
    assert ReplannedWarning in kinds
    assert PlainStepWarning not in kinds
    assert len(module.plans) == 1 + len(answers)


def test_a_graph_of_an_older_state_does_not_run():
    torch.manual_seed(0)
    model, x = Asks(), torch.rand(16, 8)
    captured = capture(model, (x,), lambda y: y.square().mean())
    module = captured.module(Schedule.store_all(captured.graph))
    model.drop.p = 0.5
    with pytest.raises(SchedsimError, match=r"model.drop.p is 0.5 instead of 0.3"):
        module(x)


def test_distributions_check_their_arguments_and_are_captured():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(8, 4)

        def forward(self, x):
            found = torch.distributions.Normal(self.mean(x), 1.0, validate_args=True)
            return -found.log_prob(found.rsample().detach()).mean()

    torch.manual_seed(0)
    model, x = Policy(), torch.randn(64, 8)
    module = schedsim.rematerialize(model, x, "100%", effort=0.1, level="op")
    plain = left(model, lambda: model(x))
    assert all(map(torch.equal, plain, left(model, lambda: module(x))))


def test_a_norm_over_a_transposed_input_trains():
    """Its kernel keeps the strides of its input, which a trace does not show."""

    class Channels(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8 * 16, 4)

        def forward(self, x):
            return self.linear(self.norm(x.transpose(1, 2)).flatten(1))

    torch.manual_seed(0)
    model, x = Channels(), torch.randn(32, 16, 8)
    other = Channels()
    other.load_state_dict(model.state_dict())

    def loss(y):
        return y.square().mean()

    try:
        module = schedsim.rematerialize(model, x, "110%", loss, level="op", effort=0.1)
    except UnsupportedError:
        return
    found = left(model, lambda: module(x))
    assert all(map(torch.equal, found, left(other, lambda: loss(other(x)))))
