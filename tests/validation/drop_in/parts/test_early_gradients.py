"""Gradients that come while the rest of a compiled graph's backward is still to run."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts import traced_part  # noqa: E402
from schedsim.validation.drop_in.parts.early_gradients import EarlyGradients, pieces_of  # noqa: E402
from schedsim.validation.drop_in.session import Session  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.fixture(autouse=True)
def _averaged_by_the_layer(monkeypatch):
    """As within a wrapper whose buckets hold the gradients of a layer each."""
    torch._dynamo.reset()
    monkeypatch.setattr(traced_part, "bucket_bytes", lambda: 1)
    monkeypatch.setattr(Session, "follows_gradients", False)  # as on several ranks


def test_a_bucket_runs_the_backward_until_it_is_full():
    """What was made for later ones waits; an argument that gets no gradient is told so."""
    arguments = [torch.randn(size, requires_grad=True) for size in (1, 2, 3, 4)]
    early = EarlyGradients([(3,), (1, 2), (0,)], arguments, 1)
    behind = early.behind_nodes(arguments)
    assert [a is b for a, b in zip(arguments, behind, strict=True)] == [False, False, False, True]
    assert all(torch.equal(a, b) for a, b in zip(arguments, behind, strict=True))
    assert all(a is b for a, b in zip(arguments, early.own(behind), strict=True))
    ran, ended = [], []

    def lists():
        for number, sizes in enumerate(((4,), (2,), (1, 3))):
            ran.append(number)
            yield [torch.full((size,), float(size)) for size in sizes]

    pieces = pieces_of(lists(), [[[3]], [[1]], [[], [2]]], ended.extend)
    found = early.begin(pieces, 4, at_once=False)
    assert ran == [0]
    assert [g.untyped_storage().nbytes() for g in found] == [4, 4, 4, 16]
    assert [tuple(g.shape) for g in found] == [(1,), (2,), (3,), (4,)]
    torch.autograd.backward(behind, found)
    assert ran == [0, 1, 2]
    assert [tensor.shape[0] for tensor in ended] == [1, 3]
    assert [None if a.grad is None else a.grad.tolist() for a in arguments] == [
        None,
        [2.0] * 2,
        [3.0] * 3,
        [4.0] * 4,
    ]


class Layers(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.unused, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.breaks, self.drop = breaks, nn.Dropout(0.2)

    def run(self, h, layers):
        for layer in layers:
            h = self.frozen(layer(h)) + h
        return h

    def forward(self, x):
        h = self.drop(x + self.table.weight.sum(0))
        h = self.run(h, self.layers[:2])
        if self.breaks:
            torch._dynamo.graph_break()
        h = self.run(h, self.layers[2:])
        return h @ self.table.weight.T  # tied


def budgeted_and_plain(breaks=False):
    """Equal models, the first with a budget."""
    torch.manual_seed(0)
    model = Layers(breaks)
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, torch.randn(64, 8), 10**8, in_place=True, effort=0.2)
    return model, plain


def trained(model, steps, *, once=True):
    """Losses, and gradients of parameters and inputs, of some steps that end in an update."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    found = []
    for _ in range(steps):
        x = torch.randn(64, 8, requires_grad=True)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if not once:
            loss = loss + model(x * 2).abs().mean()
        loss.backward()
        found += [loss.detach(), x.grad]
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "once"), [(False, True), pytest.param(True, False, marks=pytest.mark.slow)]
)
def test_steps_are_the_plain_ones(breaks, once):
    """Of a tied weight, unused and frozen ones, inputs, and a model that runs twice in a step."""
    model, plain = budgeted_and_plain(breaks)
    order, session = [], session_in(model)

    def came(name):
        order.append((name, sum(session.parts[-1].run_counts.values())))

    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "unused" not in name:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: came(name))
    found, expected = trained(model, 8, once=once), trained(plain, 8, once=once)
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    if once:
        last = [number for _, number in order[-9:]]
        assert last == sorted(last)
        assert len(set(last)) >= 4  # a layer at a time
        names = [name for name, _ in order[-9:]]
        assert names[-1] == "table.weight"
        assert {name.rpartition(".")[0] for name in names[:2]} == {"layers.3.0"}


@pytest.mark.slow
def test_an_optimizer_may_step_in_backward():
    """Nothing that comes later reads the parameter whose gradient has come."""
    model, plain = budgeted_and_plain()

    def stepped(parameter):
        parameter.data.add_(parameter.grad, alpha=-1e-3)
        parameter.grad = None

    def steps(model):
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            parameter.register_post_accumulate_grad_hook(stepped)
        torch.manual_seed(1)
        for _ in range(5):
            model(torch.randn(64, 8)).square().mean().backward()
        return list(model.parameters())

    assert all(torch.equal(a, b) for a, b in zip(steps(model), steps(plain), strict=True))


@pytest.mark.slow
def test_gradients_of_some_parameters_alone():
    """As `torch.autograd.grad` asks for them; the rest of the backward runs no further."""
    model, plain = budgeted_and_plain()
    trained(model, 3)
    trained(plain, 3)
    x = torch.randn(64, 8)
    for chosen in (slice(3, 5), slice(1, 2)):
        found = []
        for one in (model, plain):
            torch.manual_seed(2)
            layers = list(one.layers.parameters())[chosen]
            found.append(torch.autograd.grad(one(x).square().mean(), layers))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    trained(model, 2)


@pytest.mark.slow
def test_a_graph_that_is_retained_runs_backward_again():
    """Wholly, or for some parameters first."""
    model, plain = budgeted_and_plain()
    trained(model, 3)
    trained(plain, 3)
    x, found = torch.randn(64, 8), []
    for one in (model, plain):
        one.zero_grad()
        torch.manual_seed(2)
        loss = one(x).square().mean()
        found += [list(torch.autograd.grad(loss, one.layers[2][0].weight, retain_graph=True))]
        loss.backward(retain_graph=True)
        loss.backward()
        found[-1] += [p.grad for p in one.parameters() if p.grad is not None]
    assert len(found[0]) == len(found[1])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
