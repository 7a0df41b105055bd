"""Steps in which forward raises an error of the user's own, which the loop catches."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH, BATCH = 16, 32


class SkipBatch(Exception):
    """Raised by a forward, for a loop that leaves such batches out."""


class Skipping(nn.Module):
    """Draws, updates buffers, and then may raise."""

    def __init__(self, asks):
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.3)
                )
                for _ in range(3)
            )
        )
        self.last = nn.Linear(WIDTH, WIDTH)
        self.is_strict, self.asks = False, asks
        self.register_buffer("num_seen", torch.zeros(()))

    def forward(self, x):
        given, x = x, self.layers(x)
        self.num_seen.add_(1)
        if self.asks == "attribute" and self.is_strict:
            self.num_strict = getattr(self, "num_strict", 0) + 1
            raise SkipBatch
        if self.asks == "shape" and len(x) % 2:
            random.random()
            np.random.rand()
            raise SkipBatch
        if self.asks == "data" and bool((given > 1e3).any()):
            raise SkipBatch
        return self.last(x)


def mean_square(output, target):
    return (output - target[: len(output)]).square().mean()


def trained(asks, way):
    """What a loop that skips its bad batches leaves: gradients, buffers, attributes, generators."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Skipping(asks)
    batches, target = [torch.randn(BATCH, WIDTH) for _ in range(6)], torch.randn(BATCH, WIDTH)
    if asks == "shape":
        batches[2], batches[4] = batches[2][:31], batches[4][:29]
    if asks == "data":
        batches[2][0, 0] = batches[4][0, 0] = 1e4

    def step(x):
        return mean_square(model(x), target)

    if way == "in place":
        schedsim.rematerialize(model, batches[0], "100%", in_place=True, effort=0.1)
    elif way == "backend":
        compiled = torch.compile(model, backend="schedsim", options={"budget": "100%"})

        def step(x):
            return mean_square(compiled(x), target)

    elif way != "plain":
        module = schedsim.rematerialize(
            model, (batches[0], target), "100%", mean_square, level=way, effort=0.1
        )

        def step(x):
            return module(x, target)

    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for k, x in enumerate(batches):
        model.is_strict = k in (2, 4)
        try:
            loss = step(x)
            loss.backward()
            seen.append(loss.detach())
        except SkipBatch:
            seen.append(torch.tensor(-1.0))
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen += [buffer.clone() for buffer in model.buffers()]
        seen += [torch.tensor(getattr(model, "num_strict", 0)), torch.get_rng_state()]
        seen.append(torch.tensor([random.random(), np.random.rand()]))
        optimizer.step()
        optimizer.zero_grad()
    return seen


@pytest.mark.parametrize(
    ("asks", "way"),
    [
        ("attribute", "op"),
        ("shape", "op"),
        *(
            pytest.param(asks, way, marks=pytest.mark.slow)
            for asks in ("attribute", "shape", "data")
            for way in ("op", "auto", "block", "in place", "backend")
            if (asks, way) not in (("attribute", "op"), ("shape", "op"))
        ),
    ],
)
def test_a_batch_that_the_loop_skips_leaves_what_the_plain_step_leaves(asks, way):
    """Generators, buffers and attributes stand where the forward has left them as it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, found = trained(asks, "plain"), trained(asks, way)
    assert len(found) == len(expected)
    assert all(torch.equal(one, two) for one, two in zip(expected, found, strict=True))
