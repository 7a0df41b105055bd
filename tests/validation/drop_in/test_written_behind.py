"""Buffers that a forward writes behind the graph that reads them, and data that it replaces."""

from __future__ import annotations

import copy
import re
import warnings

import pytest
import torch
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import schedsim
from schedsim.errors import InfeasibleBudgetError, SchedsimError


class Contrast(nn.Module):
    """Keys of earlier batches in a queue, by a copy that follows the encoder (He et al. 2020)."""

    def __init__(self, replaces: bool):
        super().__init__()
        self.replaces = replaces
        self.own = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        self.follower = copy.deepcopy(self.own).requires_grad_(False)
        self.register_buffer("queue", normalize(torch.randn(8, 64), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for own, its in zip(self.own.parameters(), self.follower.parameters(), strict=True):
            if self.replaces:
                its.data = its.data * 0.9 + own.data * 0.1
            else:
                its.data.mul_(0.9).add_(own.data, alpha=0.1)

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.at)
        self.queue[:, at : at + len(keys)] = keys.T
        self.at[0] = (at + len(keys)) % self.queue.shape[1]

    def forward(self, x, other):
        query = normalize(self.own(x), dim=1)
        self.follow()
        with torch.no_grad():
            keys = normalize(self.follower(other), dim=1)
        near = (query * keys).sum(1, keepdim=True)
        far = query @ self.queue.clone().detach()
        self.enqueue(keys)
        return torch.cat([near, far], 1) / 0.07


@pytest.mark.slow
@pytest.mark.parametrize("replaces", [False, True])
def test_a_queue_that_is_written_behind_the_graph_that_reads_it(replaces):
    """What reads the queue runs once: in the backward half, the queue holds the new keys."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Contrast(replaces)
    model, batches = copy.deepcopy(plain), [torch.randn(2, 32, 8) for _ in range(4)]
    target, losses = torch.zeros(32, dtype=torch.long), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        schedsim.rematerialize(model, (*batches[0],), "100kB", in_place=True)
        for step in (plain, model):
            optimizer = torch.optim.SGD(step.own.parameters(), 0.1)
            for batch in batches:
                optimizer.zero_grad()
                loss = cross_entropy(step(*batch), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    assert losses[:4] == losses[4:]
    assert all(map(torch.equal, plain.state_dict().values(), model.state_dict().values()))
    torch._dynamo.reset()


def losses_within(budget, model, batches, compiled=False):
    """Losses of a loop by torch.compile's backend."""
    torch._dynamo.reset()
    model, losses = copy.deepcopy(model), []
    options = {"budget": budget, "compile": compiled, "effort": 0.1}
    step = model if budget is None else torch.compile(model, backend="schedsim", options=options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches:
        optimizer.zero_grad()
        loss = step(*batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch._dynamo.reset()
    return losses


def named(budget, model, batches):
    """The least budget that a refusal of `budget` names, and the one that its hint gives."""
    with pytest.raises(InfeasibleBudgetError) as refused:
        losses_within(budget, model, batches)
    return refused.value.min_feasible_bytes, int(re.search(r"budget=(\d+)", refused.value.hint)[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the loop holds more of the outputs")
def test_a_budget_that_the_backend_names_is_taken_where_a_queue_is_written_behind_a_graph():
    """Nothing tells what the code behind a break writes before it has run."""
    torch.manual_seed(0)
    model, batches = Contrast(False), torch.randn(4, 2, 32, 8)
    plain = losses_within(None, model, batches)
    for budget in (named("40kB", model, batches)[1], "75kB", "90kB"):
        assert losses_within(budget, model, batches) == plain


class Lookup(nn.Module):
    """What follows from a buffer is larger than the room that the least budget leaves."""

    def __init__(self, writes):
        super().__init__()
        self.writes = writes
        self.first = nn.Linear(8, 8)
        self.last = nn.Sequential(nn.Linear(8, 1024), nn.Tanh(), nn.Linear(1024, 8))
        self.register_buffer("keys", torch.randn(8, 512))

    def forward(self, x):
        keys = torch.exp(self.keys) / 100
        x = self.first(x)
        x = self.last(x + x @ keys @ keys.T / 1000)
        x.detach().sum().item()
        if self.writes:
            with torch.no_grad():
                self.keys[:, :8] = x[:8].T
        return x.tanh()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the loop holds more of the outputs")
def test_a_least_budget_keeps_what_follows_from_a_buffer_only_if_it_is_written():
    torch.manual_seed(0)
    batches = torch.randn(3, 1, 32, 8)
    reads = Lookup(False)
    least, _ = named("300kB", reads, batches)
    assert losses_within(least, reads, batches) == losses_within(None, reads, batches)
    writes = Lookup(True)
    with pytest.raises(InfeasibleBudgetError, match=r"code behind step writes .*keys.* must be"):
        losses_within(least, writes, batches)
    for budget in named(least, writes, batches):
        assert budget > least
        assert losses_within(budget, writes, batches) == losses_within(None, writes, batches)


class Centred(nn.Module):
    """Features less a centre that the loop moves, as DINO's; the plain backward reads no centre."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(*[it for _ in range(5) for it in (nn.Linear(64, 64), nn.GELU())])
        self.register_buffer("centre", torch.zeros(1, 64))
        self.last = nn.Sequential(*[it for _ in range(4) for it in (nn.Linear(64, 64), nn.GELU())])

    def forward(self, x):
        features = self.first(x)
        return features, self.last(torch.tanh(features - self.centre))


def centred(step, model, x):
    """The parameters and the centre behind steps that move it between forward and backward."""
    optimizer, found = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(5):
        features, output = step(x)
        loss = (output - x).square().mean()
        with torch.no_grad():
            model.centre.mul_(0.9).add_(features.mean(0, keepdim=True), alpha=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append([it.detach().clone() for it in model.state_dict().values()])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "backend"])
def test_a_buffer_that_the_loop_writes_between_forward_and_backward(way):
    """What follows from it runs once, so that no schedule reads it in the backward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, x = Centred(), torch.randn(512, 64)
    model = copy.deepcopy(plain)
    if way == "in place":
        step = schedsim.rematerialize(model, (x,), "1.9MB", in_place=True, effort=0.1)
    else:
        options = {"budget": "1.9MB", "effort": 0.1}
        step = torch.compile(model, backend="schedsim", options=options)
    for one, other in zip(centred(step, model, x), centred(plain, plain, x), strict=True):
        assert all(map(torch.equal, one, other))
    torch._dynamo.reset()


class TwoOutputs(nn.Module):
    """Gives features, which its plain backward does not read, and what follows from them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.last = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))

    def forward(self, x):
        features = self.first(x)
        return features, self.last(features * 2)


def backward_behind_a_write(step, x):
    features, output = step(x)
    features.clamp_(-1, 1)
    (output.square().mean() + features.sum()).backward()


@pytest.mark.slow
def test_an_output_that_is_written_and_read_again_is_named():
    """autograd's own words name neither the output nor what to do."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = TwoOutputs(), torch.randn(512, 32)
    backward_behind_a_write(model, x)
    options = {"budget": "450kB", "effort": 0.1}
    step = torch.compile(model, backend="schedsim", options=options)
    with pytest.raises(SchedsimError, match=r"an output of the model \(\(512, 32\)\) was written"):
        backward_behind_a_write(step, x)
    torch._dynamo.reset()
