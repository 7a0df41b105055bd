"""A new graph is compared with the plain step before it trains."""

from __future__ import annotations

import operator
import random
import warnings
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import budgeted_call  # noqa: E402
from schedsim.validation.drop_in.checks.plain_check import (  # noqa: E402
    difference,
    made_up_loss,
)
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.differential import NotCompared  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter  # noqa: E402
from schedsim.validation.whole_step import step_check  # noqa: E402
from schedsim.validation.whole_step.step_check import PlainMemory  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import schedsim  # noqa: E402


class Net(nn.Module):
    """With all that a second run would spoil: statistics, drawn numbers, a counter."""

    def __init__(self, breaks=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.scale, self.breaks = 1.0, breaks

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.norm(x) * self.scale


def trained(model, scales=(1.0, 0.5, 0.5, 0.25)):
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, losses = torch.randn(64, 16), []
    for scale in scales:
        model.scale = scale
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [t.clone() for t in [*model.parameters(), *model.buffers()]]


def same(one, two):
    return one[0] == two[0] and all(map(torch.equal, one[1], two[1]))


def with_budget(budget="80%", breaks=False, **options):
    torch.manual_seed(0)
    model, plain = Net(breaks), Net(breaks)
    plain.load_state_dict(model.state_dict())
    schedsim.rematerialize(
        model, torch.randn(64, 16), budget, in_place=True, effort=0.05, **options
    )
    return model, plain


def spoilt(monkeypatch):
    """From now on Dynamo's graphs add the scale, as if it had traced another branch."""
    honest = budgeted_call.compiled_part

    def wrong(session, graph_module, inputs):
        for node in graph_module.graph.nodes:
            if node.target is operator.mul:
                node.target = operator.add
        graph_module.recompile()
        return honest(session, graph_module, inputs)

    monkeypatch.setattr(budgeted_call, "compiled_part", wrong)


@pytest.mark.slow
def test_a_new_graph_is_compared_and_leaves_nothing():
    """Losses, statistics, generators and Python's numbers are those of the plain loop."""
    _, plain = with_budget()
    expected = trained(plain)  # made later, it would be held in front of the steps
    model, _ = with_budget()
    random.seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(trained(model), expected)
    assert random.random() == random.Random(5).random()
    assert session_in(model).num_compared == 1
    assert "1 times a step of the loop with the plain one" in schedsim.drop_in_report(model)


@pytest.mark.slow
def test_a_wrong_retrace_runs_as_the_model_is(monkeypatch):
    """No schedule of the wrong graph tells; the plain module does."""
    model, plain = with_budget()
    unchecked, _ = with_budget(check="never")
    expected = trained(plain)
    spoilt(monkeypatch)
    assert not same(trained(unchecked), expected)
    with pytest.warns(PlainStepWarning, match="a new graph of Net is not its plain step: the"):
        assert same(trained(model), expected)


@pytest.mark.slow
def test_a_new_graph_that_nothing_plans_is_not_called_another_step(monkeypatch):
    """An error of the planner's is told as one, and the loop goes on with the plain step."""
    model, plain = with_budget()
    expected = trained(plain)

    def fails(*_given):
        raise ValueError("no plan")

    monkeypatch.setattr(budgeted_call, "compiled_part", fails)
    with pytest.warns(PlainStepWarning, match="a new graph of Net could not be .* no plan"):
        assert same(trained(model), expected)


@pytest.mark.slow
def test_a_graph_in_the_midst_of_a_step_is_compared_at_the_next(monkeypatch):
    """What has run of the step cannot be run again; the line comes a step later."""
    model, plain = with_budget(10**6, breaks=True)
    assert same(trained(model, [1.0]), trained(plain, [1.0]))
    spoilt(monkeypatch)
    with pytest.warns(PlainStepWarning, match="is not its plain step"):
        trained(model, [0.5, 0.5])


@pytest.mark.slow
def test_every_second_step():
    """What no guard watches is seen, too."""
    model, plain = with_budget(check=2)
    assert same(trained(model, [1.0] * 4), trained(plain, [1.0] * 4))
    assert session_in(model).num_compared == 2


def test_the_made_up_loss_tells_entries_apart():
    """Every entry that can be differentiated has a gradient of its own."""
    x = torch.ones(5, requires_grad=True)
    made_up_loss({"a": x * 2, "b": torch.ones(3)}).backward()
    assert len(set(x.grad.tolist())) == 5


@dataclass
class _Result:
    """What a model returns by name."""

    scores: torch.Tensor
    parts: list


class _Named(nn.Module):
    """Returns a dataclass of tensors and a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        """Every layer's output, and the last."""
        parts = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            parts.append(x)
        return _Result(x, parts)


def test_the_tensors_of_a_dataclass_are_outputs():
    model = _Named()
    loss = made_up_loss(model(torch.randn(4, 8)))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(bool(g.any()) for g in gradients)


def compared(model, planned, x, rounded=False, lines=None):
    """How `planned` differs from the plain step; `lines` gets what is said before more is taken."""
    say = [].append if lines is None else lines.append
    memory = PlainMemory(lambda: 1000, torch.device("cpu"), say)
    return difference(model, model, planned, ((x,), {}), rounded, memory)


def with_computed_parameters(model):
    """Losses and gradients of a loop that calls `model` with parameters that it has computed."""
    x, left = torch.randn(64, 16, generator=torch.Generator().manual_seed(3)), []
    for k in range(2):
        torch.manual_seed(k)
        computed = {name: p * (1 + 0.1 * k) for name, p in model.named_parameters()}
        loss = torch.func.functional_call(model, computed, (x,)).square().mean()
        loss.backward()
        left += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        model.zero_grad()
    return left


@pytest.mark.slow
def test_a_comparison_does_not_run_the_backward_of_computed_parameters():
    """Their graph is the loop's: it is there when the loop's own backward comes."""
    model, plain = Net(), Net()
    model.load_state_dict(plain.state_dict())
    schedsim.rematerialize(model, torch.randn(64, 16), "100%", in_place=True, effort=0.1)
    found, expected = with_computed_parameters(model), with_computed_parameters(plain)
    assert all(map(torch.equal, found, expected))
    assert session_in(model).num_compared


class Halved(nn.Module):
    """A convolution's bias in front of a batch norm, which takes it out again, under autocast."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)

    def forward(self, x, shift=0.0):
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.tanh(self.norm(self.convolution(x))).float()
        bias = self.convolution.bias
        return found + shift * (bias - bias.detach()).sum()


@pytest.mark.parametrize(("shift", "is_rounding"), [(1e-4, True), (1.0, False)])
def test_what_cancels_in_a_compiled_step_is_measured_in_float64(shift, is_rounding):
    """The plain step's gradient of the bias is rounding alone, which another order changes."""
    torch.manual_seed(0)
    model, x = Halved(), torch.randn(8, 4, 32)
    lines = []
    found = compared(model, lambda x: model(x, shift), x, rounded=True, lines=lines)
    assert (found is None) == is_rounding
    assert len(lines) == 1
    assert "takes up to 4.00 kB" in lines[0]


class Policy(nn.Module):
    """An actor whose output is an object: a distribution, with a parameter of its own in it."""

    def __init__(self):
        super().__init__()
        self.body, self.mean = nn.Linear(6, 32), nn.Linear(32, 4)
        self.log_scale = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        scale = self.log_scale.exp().expand(len(x), 4)
        return torch.distributions.Normal(self.mean(hidden), scale), hidden


@pytest.mark.slow
def test_tensors_within_objects_are_outputs():
    """What gets a gradient by the distribution alone is compared, and no model refused for it."""
    torch.manual_seed(0)
    model, x = Policy(), torch.randn(64, 6)
    actions = torch.randn(64, 4)
    loss = lambda output: -output[0].log_prob(actions).mean()  # noqa: E731
    loss(model(x)).backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.1)
    assert "to the bit" in schedsim.drop_in_report(model)
    for _ in range(3):
        model.zero_grad()
        loss(model(x)).backward()
        assert all(map(torch.equal, expected, (p.grad for p in model.parameters())))


class Deep(nn.Module):
    """Keeps an activation of 64 KiB a layer; its outputs are as large."""

    def __init__(self, num_layers=24):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("rounded", [False, True])
def test_how_far_a_graph_rounds_is_measured_within_the_memory_of_its_schedules(rounded):
    """Neither step that is compared, nor what is kept of it, takes the plain step's memory."""
    torch.manual_seed(0)
    model, x = Deep(), torch.randn(1024, 16)

    def pieces(layers, x):
        for layer in layers:
            x = torch.tanh(layer(x))
        return x

    def planned(x):
        for at in range(0, 24, 6):
            x = checkpoint(pieces, model.layers[at : at + 6], x, use_reentrant=False)
        return x * 0.7 + x * 0.3  # rounds

    def compare():
        found.append(compared(model, planned, x, rounded))

    found = []
    compare()
    backward = lambda step: step(x).sum().backward()  # noqa: E731
    model.zero_grad()
    plain, frugal, checked = (
        reading.peak_bytes
        for reading in AllocatorMeter().read(
            lambda: backward(model), lambda: backward(planned), compare
        )
    )
    assert found[-1] is None if rounded else found[-1].rounding
    assert plain > 24 * 65536
    assert checked < plain / 1.5, (plain, frugal, checked)


def test_a_difference_beyond_rounding_takes_no_more_memory():
    """Such a graph is not used at all."""
    torch.manual_seed(0)
    model, x, lines = Deep(2), torch.randn(8, 16), []
    found = compared(model, lambda x: model(x) * 1.1, x, lines=lines)
    assert str(found).startswith("the gradient of layers.0.weight is off by")
    assert not found.rounding
    assert not lines


class Tangent(nn.Module):
    """Differentiates within a transform of `torch.func`, which bears no hooks of saved tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return torch.func.grad(lambda x: torch.tanh(self.layer(x)).square().sum())(x)


def test_what_bears_no_hooks_is_told_before_it_takes_the_memory_of_the_plain_step(monkeypatch):
    """Or is not compared, where there is no room."""
    model, x, lines = Tangent(), torch.randn(8, 16), []
    assert compared(model, model, x, lines=lines) is None
    assert lines == [
        "a comparison with the plain step takes the plain step's memory (1.00 kB (0.98 KiB)), not "
        "the budget's: it bears no hooks of saved tensors, by which they could wait elsewhere"
    ]
    monkeypatch.setattr(step_check, "device_memory_bytes", lambda device: 1000)
    with pytest.raises(NotCompared, match="that takes"):
        compared(model, model, x)


def test_a_step_that_fails_is_a_difference():
    """What it raises is in the line."""
    model, x = Deep(2), torch.randn(8, 16)

    def fails(x):
        raise RuntimeError("no kernel")

    found = compared(model, fails, x)
    assert str(found) == "it fails: RuntimeError: no kernel"
    assert found.is_error


class Scored(nn.Module):
    """Computes its loss, and returns what no loop trains by beside it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        scores = self.layer(x)
        return _Scores(scores.square().mean(), torch.tanh(scores))


@dataclass
class _Scores:
    """A loss as transformers return it, and a result."""

    loss: torch.Tensor
    beside: torch.Tensor


def test_only_the_loss_of_a_model_gets_a_gradient():
    """Those of other outputs would be in memory all at once, which they are in no step."""
    model, x, gradients = Scored(), torch.randn(8, 16), []

    def planned(x):
        found = model(x)
        found.beside.register_hook(gradients.append)
        return found

    assert compared(model, planned, x) is None
    assert not gradients
