"""Training loops that change something between steps, run plainly and within a budget."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import schedsim

NUM_STEPS = 4
NUM = 2
"""Blocks of a line."""
WIDTH, BATCH = 8, 64
WHAT = ("loss", "gradients", "state", "draws", "attributes")


def blocks(num=4, dropout=0.0):
    """A line of small blocks."""
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(dropout))
            for _ in range(num)
        )
    )


class Line(nn.Module):
    """A head around a line of blocks; what a case changes is in the blocks or around them."""

    def __init__(self, *items):
        super().__init__()
        self.layers = nn.ModuleList(items or blocks())
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Block(nn.Module):
    """A layer whose forward is a case's own."""

    def __init__(self, **attributes):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        for name, value in attributes.items():
            setattr(self, name, value)


@dataclass
class Case:
    """A loop: how its model is built, what happens before each step, and what is expected.

    Attributes
    ----------
    before
        ``before(model, step)`` changes something.
    loss
        ``loss()`` gives a loss, and what happens before each step besides.
    budget
        Of the step.
    data
        ``data(step, x, target)`` gives the inputs of a step.
    around
        ``around(step)`` gives the context in which a step runs.
    start
        Puts back what the loop changes outside of the model.
    """

    build: object
    before: object = lambda model, k: None
    loss: object = None
    budget: str = "85%"
    data: object = lambda k, x, target: (x, target)
    around: object = lambda k: nullcontext()
    start: object = lambda: None


def of(kind, *args, **kwargs):
    """A model of such blocks."""
    return lambda: Line(*(kind(*args, **kwargs) for _ in range(NUM)))


def built(case):
    """Model, loss and what the loop does before a step, from a fixed start."""
    case.start()
    torch.manual_seed(0)
    model = case.build()
    loss, before = case.loss() if case.loss is not None else (F.mse_loss, None)
    return model, loss, before or case.before


_OF_TORCH = ("training", "_is_torch_compile")


def attributes(model, loss):
    """What Python the step left behind."""
    found = []
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, int | float | torch.Tensor) and key not in _OF_TORCH:
                found.append((f"{name}.{key}", value))
    return [*found, ("log", list(getattr(loss, "log", [])))]


def seeded(k):
    """All generators at a fixed place."""
    torch.manual_seed(100 + k)
    random.seed(100 + k)
    np.random.seed(100 + k)


def train(case, level=None, **options):
    """What a loop leaves after every step, its warnings, and the module.

    Parameters
    ----------
    level
        ``None`` for the plain loop, ``"in place"``, ``"backend"`` for `torch.compile`, or a level
        of the whole step.
    """
    model, loss, before = built(case)
    x, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, module = (lambda x, target: loss(model(x), target)), None
    options = {"effort": 0.1, **options}
    first = case.data(0, x, target)
    with case.around(0):
        if level == "in place":
            torch._dynamo.reset()
            module = schedsim.rematerialize(
                model, first[:1], case.budget, in_place=True, extra_bytes=first[1].nbytes, **options
            )
        elif level == "backend":
            torch._dynamo.reset()
            options = {"budget": "64MiB", **options}
            module = torch.compile(model, backend="schedsim", options=options)
            step = lambda x, target: loss(module(x), target)  # noqa: E731
        elif level:
            module = step = schedsim.rematerialize(
                model, first, case.budget, loss, level=level, **options
            )
    left = []
    for k in range(NUM_STEPS):
        before(model, k)
        if {id(p) for g in optimizer.param_groups for p in g["params"]} != {
            id(p) for p in model.parameters()
        }:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seeded(k)
        with case.around(k):
            value = step(*case.data(k, x, target))
        value.backward()
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        draws = (random.random(), float(np.random.rand()), torch.rand(()))
        state = [p.detach().clone() for p in [*model.parameters(), *model.buffers()]]
        left.append((value.detach(), grads, state, draws, attributes(model, loss)))
        optimizer.step()
        optimizer.zero_grad()
    return left, module


def same(a, b):
    """Equal to the bit, through lists and tuples."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        return both and (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def first_difference(case, level):
    """A line on where the loop by `level` differs from the plain one; ``None`` if it does not."""
    expected, _ = train(case)
    found, _ = train(case, level)
    for k, (mine, its) in enumerate(zip(found, expected, strict=True)):
        for what, a, b in zip(WHAT, mine, its, strict=True):
            if not same(a, b):
                return f"step {k}: {what}: {a} instead of {b}"
    if any(type(value).__name__ == "FakeTensor" for _, value in found[-1][-1]):
        return "a tensor of the trace is left behind"
    return None
