"""Buffers that a forward writes behind the graph that reads them, and data that it replaces."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from schedsim.validation.guards.plan_variants import PlainStepWarning
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import schedsim


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
