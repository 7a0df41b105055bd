"""Whole models on each rank, gradients averaged by DistributedDataParallel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.ranks.one_plan import plan_hash  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model(width=64):
    """A line of blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)))


def _steps(rank, level, view):
    model, data = a_model(), (torch.randn(256, 64), torch.randn(256, 64))
    options = {"level": level, "effort": 0.2, "keep_gradients": True}
    module = schedsim.rematerialize(model, data, "110%", LOSS, **options)
    parallel = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=view)
    hashes = [plan_hash(module.plan)]
    before = module.plan.static_bytes
    for _ in range(2):  # the buckets are made anew after the first
        parallel(*data).backward()
        parallel.zero_grad(set_to_none=False)
    [reading] = AllocatorMeter().read(lambda: parallel(*data).backward())
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    gradients = [p.grad for p in model.parameters()]
    buckets = 0 if view else weights
    measured = storage_bytes([list(model.parameters()), gradients, *data]) + buckets
    hashes.append(plan_hash(module.plan))
    plan = module.plan
    return (
        hashes,
        plan.static_bytes - before,
        weights,
        measured + reading.peak_bytes,
        plan.peak_bytes,
    )


@pytest.mark.parametrize(("level", "view"), [("block", False), ("block", True), ("op", False)])
def test_buckets_are_counted_when_the_first_step_shows_them(level, view):
    """One copy of the gradients, unless these lie in the buckets; one plan on all ranks.

    Four layers of 64 x 64 + 64 numbers of 4 bytes are 66560.
    """
    rows = run_ranks(_steps, 2, level, view)
    assert rows[0][0] == rows[1][0]
    for _, added, weights, measured, planned in rows:
        assert weights == 66560
        assert added == (0 if view else weights)
        assert 0.99 * planned <= measured <= 1.01 * planned
