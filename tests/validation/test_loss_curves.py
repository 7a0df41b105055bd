"""Training with a plan and without it: the same losses, to the bit, for as long as one looks."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import build_model  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

STEPS = 120


def curve(model, step, batches):
    """Losses of a training run with AdamW, batches in turn, from a fixed seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(5)
    losses = []
    for k in range(STEPS):
        loss = step(*batches[k % len(batches)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.1, 0.15])
def test_a_gpt2_with_dropout_learns_the_same(dropout):
    """Dropout after attention weights, projections and embeddings; repeated ones replay theirs."""
    options = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 50, "positions": 16, "seq": 16}
    model, (ids,), loss = build_model("gpt2", batch=4, dropout=dropout, **options)
    model.train()
    batches = [((ids + shift) % 50,) for shift in range(4)]
    planned = copy.deepcopy(model)
    module = schedsim.rematerialize(planned, ids, "75%", loss, effort=0.3)
    assert module.level == "op"
    assert any(count > 1 for count in module_runs(module, batches[0]).values())
    plain = curve(model, lambda ids: loss(model(ids)), batches)
    assert curve(planned, module, batches) == plain
    assert plain[-1] < plain[0]


def module_runs(module, batch):
    """How often each op of a step runs; the gradients are thrown away."""
    module(*batch).backward()
    module.zero_grad()
    return module.run_counts


@pytest.mark.slow
def test_blocks_with_dropout_and_batch_norm_learn_the_same():
    """At the block level, running statistics included."""
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3))
        for _ in range(5)
    )
    model = nn.Sequential(*blocks)
    batches = [(torch.randn(32, 16), torch.randn(32, 16)) for _ in range(4)]
    planned = copy.deepcopy(model)
    mse = nn.functional.mse_loss
    module = schedsim.rematerialize(
        copy.deepcopy(planned), batches[0], "90%", mse, level="block", effort=0.2
    )
    module.model.load_state_dict(planned.state_dict())
    plain = curve(model, lambda x, target: mse(model(x), target), batches)
    assert curve(module, module, batches) == plain
    for mine, its in zip(module.model.buffers(), model.buffers(), strict=True):
        assert torch.equal(mine, its)
