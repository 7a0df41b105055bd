"""A graph of Dynamo, run by any of its schedules."""

from __future__ import annotations

import copy
import math
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.guards.plan_variants import RoundingWarning  # noqa: E402
from schedsim.validation.measure.allocator import allocations  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402


def stacked(x, weight):
    for _ in range(4):
        x = torch.nn.functional.dropout(torch.tanh(x @ weight), 0.2)
    return x, x.sum(0)


def gradients(step, x, weight):
    torch.manual_seed(5)
    out, total = step(x, weight)
    (out.square().sum() + total.square().sum()).backward(retain_graph=True)
    out.square().sum().backward()
    found = [t.grad for t in (x, weight)]
    x.grad = weight.grad = None
    return [out, *found]


@pytest.mark.slow
def test_every_schedule_gives_the_eager_bits():
    """Store-all, and one that recomputes; backward twice; dropout draws the same numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(8, 8))
    expected = gradients(stacked, x, weight)
    options = {"budget": 10**9}
    step = torch.compile(stacked, backend="schedsim", options=options)
    assert all(map(torch.equal, gradients(step, x, weight), expected))
    session = session_of(options)
    (part,) = session.parts
    names = list(part.graph.op_names)
    seed = names.index(part.seed_name)
    once = {op.name for op in part.graph.ops if op.once}
    again = [name for name in names[:seed] if name not in once]
    number = part.add(Schedule.from_names([*names[: seed + 1], *again, *names[seed + 1 :]]))
    session.numbers[(0, 0)] = number
    assert all(map(torch.equal, gradients(step, x, weight), expected))
    assert part.run_counts[again[0]] == 3  # two backwards
    assert part.cost(number).kept_bytes < part.cost(0).kept_bytes
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_norm_that_is_called_twice_is_repeated_without_its_statistics():
    """The second call reads the statistics of the first; repeats of both read none."""
    torch._dynamo.reset()

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)

        def forward(self, x):
            return torch.tanh(self.norm(torch.tanh(self.norm(x)))) * 2

    plain, model = Twice(), Twice()
    x = torch.randn(16, 8, requires_grad=True)
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(model, backend="schedsim", options=options)
    (expected,) = torch.autograd.grad(plain(x).square().sum(), x)
    step(x).square().sum().backward()
    session = session_of(options)
    (part,) = session.parts
    names, once = list(part.graph.op_names), {op.name for op in part.graph.ops if op.once}
    seed = names.index(part.seed_name)
    again = [name for name in names[:seed] if name not in once]
    assert sum("batch_norm" in name for name in again) == 2
    number = part.add(Schedule.from_names([*names[: seed + 1], *again, *names[seed + 1 :]]))
    session.numbers[(0, 0)] = number
    model.load_state_dict(Twice().state_dict())
    x.grad = None
    step(x).square().sum().backward()
    assert torch.equal(x.grad, expected)
    assert all(map(torch.equal, model.buffers(), plain.buffers()))
    torch._dynamo.reset()


class GaussianProcess(torch.nn.Module):
    """The likelihood of targets: distances, whose backward fills a transposed gradient in place."""

    def __init__(self):
        super().__init__()
        self.lengths = torch.nn.Parameter(torch.zeros(3))
        self.noise = torch.nn.Parameter(torch.tensor(-2.0))

    def forward(self, x, y):
        z = x / self.lengths.exp()
        kernel = torch.exp(-0.5 * torch.cdist(z, z).square())
        factor = torch.linalg.cholesky(kernel + self.noise.exp() * torch.eye(len(x)))
        fitted = torch.cholesky_solve(y[:, None], factor)[:, 0]
        return 0.5 * (y * fitted).sum() + factor.diagonal().log().sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    "door", slow_where(["in place", "backend", "whole"], lambda door: door != "whole")
)
def test_a_gaussian_process_is_equal_to_the_bit(door):
    """It was off by some 1e-6: a gradient lay in the order of dimensions, and sums in another."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = GaussianProcess(), torch.randn(64, 3)
    y = torch.sin(x.sum(1)) + 0.1 * torch.randn(64)
    model(x, y).backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingWarning)
        if door == "backend":
            options = {"budget": "100%", "effort": 0.1}
            step = torch.compile(model, backend="schedsim", options=options)
        else:
            in_place = door == "in place"
            step = schedsim.rematerialize(model, (x, y), "100%", in_place=in_place, effort=0.1)
        step(x, y).backward()
    assert all(map(torch.equal, [p.grad for p in model.parameters()], expected))


class Halved(nn.Module):
    """A graph whose outputs are both halves of its input, before a break and behind another one."""

    def __init__(self):
        super().__init__()
        self.whole, self.part, self.last = nn.Linear(16, 16), nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x):
        x = torch.tanh(self.whole(x))
        torch._dynamo.graph_break()
        one, two = x.split(8, -1)
        y = torch.tanh(self.part(one))
        torch._dynamo.graph_break()
        return self.last(y * two + one)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
def test_gradients_of_parts_of_an_input_stand_beside_it(door):
    """AOTAutograd traces them within the storage of the input: the graph was refused."""
    torch.manual_seed(0)
    plain, x = Halved(), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    torch._dynamo.reset()
    if door == "backend":
        call = torch.compile(model, backend="schedsim", options={"budget": "200kB"})
    else:
        call = schedsim.rematerialize(model, x, "200kB", in_place=True)
    for _ in range(4):
        for its in (plain, call):
            its(x).square().mean().backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


class Spectrum(nn.Module):
    """A transform that fixes the length of its input in the trace, and a break behind it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        x, length = self.layer(x), x.size(1)
        spectrum = torch.fft.irfft(torch.fft.rfft(x, n=length, dim=1), n=length, dim=1)
        [peaks] = spectrum.mean((0, 2)).topk(int(math.log(length)))[1:]
        torch._dynamo.graph_break()
        return spectrum * length + x[:, peaks[0].item()][:, None]


class Spectra(nn.Module):
    """Two lengths go through one layer; a choice by a number makes it a frame of its own."""

    def __init__(self):
        super().__init__()
        self.spectrum = Spectrum()

    def forward(self, x):
        total = 0.0
        for part in (x, x[:, :12].contiguous()):
            if part.sum() > 1e6:
                continue
            total = total + self.spectrum(part).square().mean()
        return total


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
def test_a_graph_may_return_a_size_that_its_trace_has_fixed(door):
    """Dynamo takes it for open, as lengths differ: a KeyError came where the graph was traced."""
    torch.manual_seed(0)
    plain, x = Spectra(), torch.randn(4, 16, 8)
    model = copy.deepcopy(plain)
    torch._dynamo.reset()
    if door == "backend":
        call = torch.compile(model, backend="schedsim", options={"budget": "200kB"})
    else:
        call = schedsim.rematerialize(model, x, "200kB", in_place=True)
    for _ in range(3):
        for its in (plain, call):
            its(x).backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def test_what_tells_calls_apart_takes_no_bytes_beside_the_step():
    """A plan that fills its budget was over it by as much."""
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(32, 32)
    step = torch.compile(model, backend="schedsim", options={"budget": "1MB", "effort": 0.1})
    for _ in range(4):
        step(x).square().mean().backward()
    changes = allocations(lambda: step(x))
    assert x.nbytes in changes
    assert 8 not in changes


def test_data_that_is_replaced_between_forward_and_backward_is_told_of():
    """Each eager op reads what it has saved: a linear layer the old weight, a norm the new one."""
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)), torch.randn(32, 32)
    step = torch.compile(model, backend="schedsim", options={"budget": "1MB", "effort": 0.1})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingWarning)
        for _ in range(3):
            step(x).square().mean().backward()
            model[2].weight.data = model[2].weight.data * 0.9  # behind the backward
        with torch.autograd.graph.save_on_cpu():  # what comes back is a copy
            loss = step(x).square().mean()
        loss.backward()
    loss = step(x).square().mean()
    model[2].weight.data = model[2].weight.data * 0.9
    told = "2._parameters.weight was given other data .* behind the backward"
    with pytest.warns(RoundingWarning, match=told):
        loss.backward()
