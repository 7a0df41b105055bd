"""Blocks that copy what they keep to host memory, from one call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.algorithms import PLANNERS  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.transfers import HostPool, measured_links  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.plans.links import Link  # noqa: E402

LOSS = nn.functional.mse_loss
needs_planner = pytest.mark.skipif(
    "offload" not in PLANNERS, reason="there is no planner of offloading"
)


class Block(nn.Module):
    """Two matrix products and a dropout."""

    def __init__(self, width=64):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        """The last op saves its output."""
        return torch.tanh(self.outer(self.drop(torch.relu(self.inner(x)))))


def a_model(num=6):
    """A line of blocks, and a step's inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(num)))
    return model, (torch.randn(256, 64), torch.randn(256, 64))


def gradients(model, step):
    """Loss and gradients of a step from a fixed start."""
    for p in model.parameters():
        p.grad = None
    torch.manual_seed(3)
    loss = step()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@needs_planner
def test_a_step_that_offloads_fits_and_gives_the_bits_of_the_model(tmp_path):
    model, inputs = a_model()
    quick = (Link(1e13), Link(1e13))  # recomputing costs more than copies over this
    options = {"level": "block", "effort": 2.0}
    plain = schedsim.rematerialize(model, inputs, "60%", LOSS, **options)
    module = schedsim.rematerialize(
        model, inputs, plain.budget_bytes, LOSS, offload=quick, host_bytes="1GB", **options
    )
    assert any(name.startswith("h2d:") for name in module.plan.schedule.names)
    # The times of the two were measured by themselves: a busy machine tells them apart.
    assert module.plan.overhead < plain.plan.overhead
    assert module.plan.peak_bytes <= module.budget_bytes
    expected = gradients(model, lambda: LOSS(model(inputs[0]), inputs[1]))
    assert all(map(torch.equal, expected, gradients(model, lambda: module(*inputs))))
    model.zero_grad()
    with schedsim.watch(module) as seen:
        module(*inputs).backward()
    peak = module.plan.peak_bytes
    random_states = 5056 * 6
    assert 0.9 * peak <= seen.measured_bytes[0] <= peak + random_states
    assert module._plans.last.module.mover.pool.peak_bytes > 0
    assert {way.offload for way in module.ways} == {True, False}
    schedsim.save(module.plan, tmp_path / "plan.json")
    again = schedsim.apply(model, tmp_path / "plan.json", inputs, LOSS)
    assert all(map(torch.equal, expected, gradients(model, lambda: again(*inputs))))
    assert again.run_counts == module.run_counts


class Hidden(torch.autograd.Function):
    """Keeps a tensor where saved tensors are not."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x * 2
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.kept


class HidingBlock(nn.Module):
    """A block with such a function."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        """Linear, then the square."""
        return Hidden.apply(self.linear(x))


def test_what_no_copy_finds_is_refused():
    torch.manual_seed(0)
    model = nn.Sequential(HidingBlock(), HidingBlock())
    with pytest.raises(schedsim.SchedsimError, match="bytes, of which 0 are saved tensors"):
        capture_chain(model, torch.randn(4, 8), lambda y: y.sum(), rounds=0, movable=True)


def test_the_op_level_does_not_offload():
    model, inputs = a_model()
    with pytest.raises(schedsim.UnsupportedError, match="of the block level"):
        schedsim.rematerialize(model, inputs, "90%", LOSS, level="op", offload="pcie4")


def test_host_memory_is_used_again():
    pool = HostPool(pinned=False)
    first, _ = pool.take(100)
    other, _ = pool.take(100)
    pool.give(first, None)
    again, _ = pool.take(100)
    assert again is first
    assert (pool.used_bytes, pool.peak_bytes) == (200, 200)
    pool.give(again, None)
    pool.give(other, None)
    pool.release()
    assert pool.used_bytes == 0


def test_a_link_is_measured():
    for link in measured_links(torch.device("cpu"), 2**20):
        assert link.bytes_per_s > 1e6
