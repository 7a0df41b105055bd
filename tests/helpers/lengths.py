"""A model whose sequences may have any length, and steps of it within a budget."""

from __future__ import annotations

import copy

import torch
from schedsim.validation.measure import AllocatorMeter, storage_bytes
from torch import nn

import schedsim

WIDTH = 16


class Block(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop, self.broken = nn.Dropout(0.1), broken

    def forward(self, x):
        x = x + self.drop(self.down(torch.tanh(self.up(torch.tanh(x)))))
        if self.broken:
            torch._dynamo.graph_break()
        return x


class Net(nn.Module):
    """Its second output is computed from a size."""

    def __init__(self, broken=False, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(broken) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x, x.shape[1] * 1.5


def batch(length):
    torch.manual_seed(length)
    return torch.randn(8, length, WIDTH)


def step(model, x):
    """Loss and gradients of a step whose loss is outside."""
    torch.manual_seed(7)
    output, weight = model(x)
    loss = output.square().mean() * weight
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


def peak(model, x):
    [reading] = AllocatorMeter().read(lambda: step(model, x))
    return reading.peak_bytes + storage_bytes([*model.parameters(), x]), reading.result


def same(model, plain, x, budget):
    """Assert that the step is the plain one to the bit, and within `budget`."""
    taken, found = peak(model, x)
    assert all(map(torch.equal, found, step(plain, x)))
    assert taken <= budget


def planned(model, first, budget, **options):
    plain = copy.deepcopy(model)
    schedsim.rematerialize(
        model, first, budget, in_place=True, effort=0.2, background=False, **options
    )
    for _ in range(3):
        step(model, first)
    return plain
