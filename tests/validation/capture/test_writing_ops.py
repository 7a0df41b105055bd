"""Custom ops that write into their arguments are ops of the graph."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@torch.library.custom_op("schedsim_tests::count_into", mutates_args=("total",))
def count_into(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x.sum(0))


@torch.library.custom_op("schedsim_tests::sin_into", mutates_args=("out",))
def sin_into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.copy_(x.sin())
    return x.cos()


@sin_into.register_fake
def _(x, out):
    return torch.empty_like(x)


class Writing(nn.Module):
    """A buffer, a part of one, and a new tensor are written."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("totals", torch.zeros(2, 16))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
            out = torch.empty_like(x)
            x = x * sin_into(x.detach(), out) + out
            count_into(self.totals[1], x.detach())
        return x.square().mean()


def left_by(step, model):
    """Gradients and the buffer."""
    step().backward()
    return [*(p.grad for p in model.parameters()), model.totals]


def test_a_step_whose_ops_write_in_place_is_planned_op_by_op():
    torch.manual_seed(0)
    model, x = Writing(), torch.randn(64, 16)
    plain = copy.deepcopy(model)
    expected = left_by(lambda: plain(x), plain)
    module = schedsim.rematerialize(model, (x,), "75%", lambda loss: loss, effort=0.2)
    model.zero_grad()
    [reading] = AllocatorMeter().read(lambda: module(x).backward())
    assert storage_bytes([*model.parameters(), model.totals, x]) + reading.peak_bytes <= (
        module.plan.peak_bytes
    )
    model.zero_grad()
    model.totals.zero_()
    assert all(map(torch.equal, left_by(lambda: module(x), model), expected))


@pytest.mark.slow
def test_such_a_step_is_planned_by_the_backend():
    torch.manual_seed(0)
    model, x = Writing(), torch.randn(64, 16)
    plain = copy.deepcopy(model)
    expected = left_by(lambda: plain(x), plain)
    step = torch.compile(model, backend="schedsim", options={"budget": "90%", "effort": 0.1})
    assert all(map(torch.equal, left_by(lambda: step(x), model), expected))
