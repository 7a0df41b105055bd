"""Repeats find what the first run found: statistics, buffers, casts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from replayed_blocks import recompute_everything  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, outcome  # noqa: E402
from torch import nn  # noqa: E402


def test_statistics_move_once():
    """One step counts one batch, however often a block is replayed."""
    name, options = SMALL["resnet"]
    model, inputs, loss = build_model(name, **options)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    module(*inputs).backward()
    counts = [b.item() for n, b in model.named_buffers() if n.endswith("num_batches_tracked")]
    assert set(counts) == {1}


class Counter(nn.Module):
    """Scales by how often it has been called: a buffer that the forward reads and changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        """Scaled by the calls so far, this one included."""
        self.calls = self.calls + 1
        return self.linear(x) * self.calls


def test_other_buffers_are_replayed_too():
    """A repeat sees the buffer as the first run saw it, and leaves it as it found it."""
    model = nn.Sequential(*(Counter() for _ in range(3)))
    inputs = (torch.randn(2, 4),)
    captured = capture_chain(model, inputs, lambda y: y.square().mean(), rounds=0)
    plain = outcome(model, lambda: model(*inputs).square().mean())
    module = captured.module(recompute_everything(captured.chain))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(*inputs))))


def test_autocast_is_kept_for_the_repeats():
    """The backward runs outside the context; its repeats cast as the first runs did."""
    name, options = SMALL["gpt2"]
    model, inputs, loss = build_model(name, **{**options, "tied": False})
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))

    def under_autocast(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step()

    plain = outcome(model, lambda: under_autocast(lambda: loss(model(*inputs))))
    found = outcome(model, lambda: under_autocast(lambda: module(*inputs)))
    assert all(map(torch.equal, plain, found))
