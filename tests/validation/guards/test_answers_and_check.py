"""Values that Python asks of tensors, and the comparison of the planned step with the plain one."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.guards.asking import OtherAnswer  # noqa: E402
from schedsim.validation.guards.differential import Both  # noqa: E402
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
    module = schedsim.rematerialize(model, (first, target), "120%", F.mse_loss, time_limit_s=0.1)
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


def test_another_answer_leaves_nothing_changed():
    torch.manual_seed(0)
    model, x = Asks(), torch.rand(16, 8)
    captured = capture(model, (x,), lambda y: y.square().mean())
    module = captured.module(Schedule.store_all(captured.graph))
    buffers = [b.clone() for b in model.buffers()]
    state = torch.get_rng_state()
    with pytest.raises(OtherAnswer, match=r"of a tensor of the step is False where True"):
        module(x - 1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, buffers, model.buffers()))


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
    module = schedsim.rematerialize(model, x, "100%", time_limit_s=0.1, level="op")
    plain = left(model, lambda: model(x))
    assert all(map(torch.equal, plain, left(model, lambda: module(x))))


@pytest.mark.parametrize("check", [0, True, "sometimes", 2.5])
def test_a_check_that_says_nothing_is_refused(check):
    with pytest.raises(SchedsimError, match="check="):
        schedsim.rematerialize(nn.Linear(2, 2), torch.ones(2, 2), "100%", torch.sum, check=check)


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


@pytest.mark.parametrize("level", ["auto", "op"])
def test_every_second_step_is_compared_and_a_wrong_plan_is_left(level):
    """A runtime that has gone wrong is found at the second step, and the loop stays right."""
    model, x, target = a_line()
    module = schedsim.rematerialize(
        model, (x, target), "90%", F.mse_loss, time_limit_s=0.1, check=2, level=level
    )
    right = module._last.module.forward
    module._last.module.forward = lambda *given: 2.0 * right(*given)
    wrong, expected = module(x, target), F.mse_loss(model(x), target)
    assert torch.equal(wrong, 2.0 * expected)
    kind = PlainStepWarning if level == "op" else UserWarning
    what = "step 2 by the plan is not the plain one: the loss is off"
    with pytest.warns(kind, match=what) as caught:
        assert torch.equal(module(x, target), expected)
    assert len(caught) == 1
    assert torch.equal(module(x, target), expected)


def test_what_was_compared_is_said():
    model, x, target = a_line()
    options = {"time_limit_s": 0.1}
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, **options)
    assert "check          loss, gradients, buffers and generators are" in module.report()
    module = schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, check="never", **options)
    assert "check          not compared with the plain step" in module.report()


def test_gradients_of_the_losss_own_parameters_are_left_as_they_are():
    """Planning by blocks runs the loss; its parameters have no gradient afterwards."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, y, target):
            return ((y - target).square() * self.weight).mean()

    model, x, target = a_line()
    loss = Weighted()
    module = schedsim.rematerialize(model, (x, target), "90%", loss, level="block")
    assert loss.weight.grad is None
    module(x, target).backward()
    found, loss.weight.grad = loss.weight.grad, None
    loss(model(x), target).backward()
    assert torch.equal(found, loss.weight.grad)


def test_an_optimizer_that_steps_in_backward_does_not_step_while_planning():
    model, x, target = a_line()
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: p.data.add_(p.grad))
    for level in ("op", "block"):
        schedsim.rematerialize(model, (x, target), "90%", F.mse_loss, level=level, time_limit_s=0.1)
    assert all(map(torch.equal, before, model.parameters()))


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
        module = schedsim.rematerialize(model, x, "110%", loss, level="op", time_limit_s=0.1)
    except UnsupportedError:
        return
    found = left(model, lambda: module(x))
    assert all(map(torch.equal, found, left(other, lambda: loss(other(x)))))
