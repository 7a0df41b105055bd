"""What the loop has made before a step and keeps for its backward counts in the budget."""

from __future__ import annotations

import copy
import itertools
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside import graphs_beside  # noqa: E402
from schedsim.validation.drop_in.beside.graphs_beside import bytes_of_graphs  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


@pytest.mark.slow
def test_bytes_of_a_graph():
    x = torch.randn(64, 64, requires_grad=True)
    before = bytes_of_graphs({x.data_ptr()})
    made = x.sin().tanh()  # sin keeps x, tanh its own result
    assert bytes_of_graphs({x.data_ptr()}) == before + made.nbytes
    made.sum().backward()
    del made
    assert bytes_of_graphs({x.data_ptr()}) == before


@pytest.mark.slow
def test_tensors_without_bytes_of_their_own_do_not_count():
    """What a transform of functions has wrapped, and what a trace has instead of values."""
    left = []

    def function(x):
        left.append(x.sin().tanh())
        return left[-1].sum()

    x = torch.randn(64, 64)
    before = bytes_of_graphs(())
    _, pull_back = torch.func.vjp(function, x)
    with FakeTensorMode():
        left.append(torch.randn(64, 64, requires_grad=True).sin().tanh())
    assert all(it.grad_fn is not None for it in left)
    assert bytes_of_graphs(()) == before
    del pull_back


def test_no_hook_of_a_checkpoint_runs():
    x = torch.randn(64, 64, requires_grad=True)
    runs = []

    def run(x):
        runs.append(None)
        return x.sin().cos()

    made = checkpoint(run, x, use_reentrant=False)
    bytes_of_graphs({x.data_ptr()})
    assert len(runs) == 1
    del made


def critic():
    layers = [nn.Linear(16, 128), nn.LeakyReLU(0.2)]
    for _ in range(5):
        layers += [nn.Linear(128, 128), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(128, 1))


def penalty(model, x):
    """As of a WGAN-GP: the graph of a gradient, before the critic's own forward."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model.forward(x).sum(), x, create_graph=True)
    return (slope.norm(2, 1) - 1).square().mean()


def steps(model, x, num, *, twice=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(num):
        slope = penalty(model, x[:128] if twice else x)
        loss = model(x).square().mean() + slope
        if twice:
            loss = loss - model(x * 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(("twice", "share"), [(False, 0.9), (True, 0.7)])
def test_a_gradient_penalty_before_the_step_counts(twice, share):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = critic(), torch.randn(1024, 16)
    plain = copy.deepcopy(model)
    resident = storage_bytes([*model.parameters(), x])
    expected = steps(plain, x, 5, twice=twice)
    [reading] = AllocatorMeter().read(lambda: steps(plain, x, 2, twice=twice))
    budget = int((reading.peak_bytes + resident) * share)
    schedsim.rematerialize(model, (x,), budget, in_place=True, extra_bytes=3 * x.nbytes)
    assert steps(model, x, 5, twice=twice) == expected
    [reading] = AllocatorMeter().read(lambda: steps(model, x, 2, twice=twice))
    assert reading.peak_bytes + resident <= budget
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.slow
def test_where_it_does_not_fit_the_step_is_refused():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = critic(), torch.randn(1024, 16)
    schedsim.rematerialize(model, (x,), 11_348_394, in_place=True)  # the plain step takes 16.2 MB
    with pytest.raises(InfeasibleBudgetError):
        steps(model, x, 5)


@pytest.mark.slow
def test_what_a_loop_makes_in_one_step_and_holds_into_the_next_counts():
    """Autograd has made it before the backward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(256, 64)
    weight, given = torch.randn(64, 64, requires_grad=True), torch.randn(512, 64)

    def train(model, num):
        held = torch.zeros(())
        for _ in range(num):
            out = model(x).square().mean()
            later = (given @ weight).sin().tanh().mean()
            (out + held).backward()
            held = later
            model.zero_grad()
            weight.grad = None

    plain = copy.deepcopy(model)
    [reading] = AllocatorMeter().read(lambda: train(plain, 3))
    resident = storage_bytes([*model.parameters(), x, weight, given])
    budget = int(0.9 * (reading.peak_bytes + resident))
    extra = storage_bytes([weight, given])
    options = {"in_place": True, "effort": 0.2, "check": "never", "extra_bytes": extra}
    schedsim.rematerialize(model, (x,), budget, **options)
    train(model, 6)
    [reading] = AllocatorMeter().read(lambda: train(model, 3))
    assert reading.peak_bytes + resident <= budget


def test_a_loop_without_such_code_is_looked_at_twice(monkeypatch):
    """Later, all objects of the process are gone through where autograd has made something."""
    looks = []
    monkeypatch.setattr(graphs_beside, "bytes_of_graphs", lambda _: looks.append(None) or 0)
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)), torch.randn(512, 16)
    schedsim.rematerialize(model, (x,), 1_500_000, in_place=True, effort=0.1, check="never")
    for _ in range(5):
        model(x).square().mean().backward()
        model.zero_grad()
    assert len(looks) == 2


@pytest.mark.slow
def test_what_comes_later_and_does_not_fit_is_said_with_a_budget_that_has_room(monkeypatch):
    """The budget that the line names holds."""
    x = torch.randn(512, 16)

    def train(budget):
        torch._dynamo.reset()
        torch.manual_seed(0)
        looks = [0, 0]  # and then what the loop holds from the third step on
        monkeypatch.setattr(
            graphs_beside, "bytes_of_graphs", lambda _: looks.pop() if looks else 2_000_000
        )
        # As where autograd makes a node in each step before its forward.
        monkeypatch.setattr(graphs_beside, "sequence_number", itertools.count().__next__)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        options = {"in_place": True, "effort": 0.1, "check": "never"}
        schedsim.rematerialize(model, (x,), budget, **options)
        for _ in range(5):
            model(x).square().mean().backward()
            model.zero_grad()

    with pytest.warns(PlainStepWarning, match="made before a step, beside which") as caught:
        train(1_500_000)
    line = next(str(w.message) for w in caught if "beside which" in str(w.message))
    named = int(re.search(r"budget=(\d+) has room", line)[1])
    assert named > 2_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        train(named)


@pytest.mark.slow
def test_graphs_in_a_cycle_are_freed_and_do_not_count():
    """As those that the traceback of a refusal holds, which the loop has caught."""
    x = torch.randn(64, 64, requires_grad=True)
    before = bytes_of_graphs({x.data_ptr()})
    cycle = [x.sin().tanh()]
    cycle.append(cycle)
    del cycle
    beside = graphs_beside.GraphsBeside()
    beside.look(lambda: {x.data_ptr()}, is_measured=True)
    assert beside.num_bytes <= before
