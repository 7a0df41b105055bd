"""Parts that other tools trip over: each gives the plain model's bits, repeated or not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import random_schedule
from schedsim.validation.capture import capture
from schedsim.validation.capture.skeleton import run_step
from schedsim.validation.costs import measured_costs
from step_models import make_step
from storage_tracker import measured_peak
from torch import nn

from schedsim import Schedule, simulate
from schedsim.errors import InvalidScheduleError


class Frozen(nn.Module):
    """A frozen layer between trained ones, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.relu(self.first(x)))))


class ChangesItsInput(nn.Module):
    """Adds to its input in place, and reads it before and after."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        before = self.linear(x * 2).sigmoid()
        x.add_(1)
        return before * self.linear(x)


class PowerIteration(nn.Module):
    """Spectral normalisation: a buffer that each step iterates on and divides by."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x.tanh())


class Constant(nn.Module):
    """A tensor in a plain attribute, and one made in forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        return self.linear(x) * self.scale + torch.tensor(0.5)


class SharedLayer(nn.Module):
    """One layer at three places, and one at two paths."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.alias = self.layer

    def forward(self, x):
        return self.head(self.alias(self.layer(self.layer(x).tanh()).tanh()))


class Branches(nn.Module):
    """Splits, chunks and stacks: many views of one storage, and many readers of one view."""

    def __init__(self):
        super().__init__()
        self.linear, self.head = nn.Linear(4, 12), nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        a, b, c = self.linear(x).chunk(3, -1)
        d, e = torch.stack([a * b, b + c]).unbind(0)
        return self.head(
            self.drop(d) + self.drop(e) + F.dropout(torch.cat([a, c], 0)[: len(x)], 0.3)
        )


class ReadsItsLoss(nn.Module):
    """The loss is an exponential, whose backward reads it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)

    @staticmethod
    def loss(output, target):
        return output.square().mean().exp()


class NormOfTransposed(nn.Module):
    """BatchNorm1d over features that lie last: its kernel does not keep their strides."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 3)
        self.norm, self.again, self.head = nn.BatchNorm1d(3), nn.BatchNorm1d(3), nn.Linear(6, 3)

    def forward(self, x):
        x = self.norm(self.first(x.view(6, 2, 2)).transpose(1, 2)).transpose(1, 2).relu()
        return self.head(self.again(self.second(x).transpose(1, 2)).relu().flatten(1))


class PaddedSpectrum(nn.Module):
    """A real transform of frames, whose backward writes into a part of a larger tensor."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 64), nn.Linear(33, 3)

    def forward(self, x):
        return self.last(torch.fft.rfft(self.first(x).tanh()).abs() + 1.0)


class OwnGradient(nn.Module):
    """A penalty on the gradient of its own output by its input."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 3))

    def forward(self, x):
        x = x.detach().clone().requires_grad_()
        found = self.inner(x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found * slope.norm(dim=1, keepdim=True)


class FunctionalDerivative(nn.Module):
    """A derivative by torch.func, which refuses hooks on what is saved."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(1, 3), nn.Linear(4, 3)

    def forward(self, x):
        def value(one):
            return torch.tanh(self.inner(one[None])).sum()

        return self.head(torch.func.vmap(torch.func.grad(value))(x.flatten()).view_as(x))


ODD = (
    Frozen,
    ChangesItsInput,
    PowerIteration,
    Constant,
    SharedLayer,
    Branches,
    ReadsItsLoss,
    NormOfTransposed,
    PaddedSpectrum,
    OwnGradient,
    FunctionalDerivative,
)


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: kind.__name__)
def test_odd_models(kind):
    """Loss, gradients, buffers and inputs, store-all and repeated; the peak to the byte."""
    torch.manual_seed(0)
    model, x, y = kind(), torch.randn(6, 4), torch.randint(0, 3, (6,))
    loss = getattr(model, "loss", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])))
    state = copy.deepcopy(model.state_dict())
    captured = capture(model, (x, y), loss)

    def outcome(run):
        model.load_state_dict(state)
        model.zero_grad()
        torch.manual_seed(4)
        given = x.clone()
        value = run((given, y))
        gradients = [p.grad for p in model.parameters()]
        return [value, given, *gradients, *(b.clone() for b in model.buffers())]

    def plain(inputs):
        value = run_step(model, loss, 1, inputs, {})
        value.backward()
        return value.detach()

    def same(a, b):
        return (a is None and b is None) or torch.equal(a, b)

    expected = outcome(plain)
    for seed in (None, *range(5)):
        schedule = Schedule.store_all(captured.graph)
        if seed is not None:
            schedule = random_schedule(np.random.default_rng(seed), captured.graph)
        module = captured.module(schedule)
        peaks = []

        def scheduled(inputs, module=module, peaks=peaks):
            tracker, value = measured_peak(module, inputs)
            peaks.append(tracker.peak_bytes)
            return value

        got = outcome(scheduled)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True)), seed
        resident_constants = captured.graph.static_bytes - sum(
            t.untyped_storage().nbytes() for t in [*module.parameters(), *module.buffers()]
        )
        predicted = simulate(captured.graph, schedule).peak_bytes
        assert predicted - resident_constants <= peaks[0] <= predicted


def test_random_ops_keep_their_order():
    """Two dropouts on parallel branches: the second draws after the first in any legal schedule.

    Where the data orders them already, nothing is added to the graph.
    """
    torch.manual_seed(0)
    model, x, y = Branches(), torch.randn(6, 4), torch.randint(0, 3, (6,))
    captured = capture(model, (x, y), F.cross_entropy)
    graph = captured.graph
    first, second = "drop.dropout", "drop.dropout#2"
    assert f"{first}:ran" in graph.ops[graph.op_index(second)].reads
    names = list(graph.op_names)
    i, k = names.index(first), names.index(second)
    names[i], names[k] = second, first
    with pytest.raises(InvalidScheduleError, match=f"{second} reads {first}:ran"):
        captured.module(Schedule.from_names(names))
    straight = capture(*make_step("gpt")).graph
    assert not any(":ran" in name for op in straight.ops for name in op.writes)


def test_a_copy_of_a_part_counts_all_that_lies_under_it():
    """Its example, when it is measured, has no more than it shows."""
    torch.manual_seed(0)
    captured = capture(
        PaddedSpectrum(), (torch.randn(6, 4), torch.randint(0, 3, (6,))), F.cross_entropy
    )
    costs = measured_costs(captured, torch.device("cpu"), use_cache=False, target_s=0.0)
    for graph in (captured.graph, captured.with_costs(costs).graph):
        sizes = {name: size for op in graph.ops for name, size in op.writes.items()}
        [copied] = [size for name, size in sizes.items() if name.endswith(".copy")]
        [made] = [size for name, size in sizes.items() if name.endswith("new_zeros")]
        assert copied == made
