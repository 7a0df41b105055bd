"""Stages of PyTorch's pipelines with a budget in place: the plain bits, within the budget."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from residual_layer import ResidualLayer  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

NUM_BATCHES = 6


def _trained(rank, schedule, budget):
    """Losses and parameters after three steps, the bytes of the next, and the session's peak."""
    from torch.distributed import pipelining

    torch.manual_seed(0)
    layers = [ResidualLayer(32) for _ in range(4)]
    model = nn.Sequential(*layers[2 * rank : 2 * rank + 2])
    x, target = torch.randn(2, 64 * NUM_BATCHES, 32).unbind()
    if budget:
        example = torch.randn(64, 32, requires_grad=rank > 0)
        schedsim.rematerialize(model, example, budget, in_place=True, effort=0.2)
    stage = pipelining.PipelineStage(model, rank, 2, torch.device("cpu"))
    run = getattr(pipelining, schedule)(stage, NUM_BATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    def step():
        of_batches = []
        if rank:
            run.step(target=target, losses=of_batches)
        else:
            run.step(x)
        losses.extend(loss.item() for loss in of_batches)

    for _ in range(3):
        step()
        optimizer.step()
        optimizer.zero_grad()
    [reading] = AllocatorMeter().read(step)
    held = storage_bytes(list(model.parameters())) + reading.peak_bytes
    found = [p.detach().clone() for p in model.parameters()]
    return losses, found, held, session_in(model).peak_bytes if budget else None


def _both(rank, schedule, share):
    plain = _trained(rank, schedule, None)
    budget = int(share * plain[2])
    mine = _trained(rank, schedule, budget)
    same = mine[0] == plain[0] and all(map(torch.equal, mine[1], plain[1]))
    return same, plain[2], mine[2], mine[3], budget


@pytest.mark.slow
def test_a_stage_is_within_its_budget():
    """All forwards, then backwards first in, first out; outputs and gradients sent stay."""
    for same, plain, held, planned, budget in run_ranks(_both, 2, "ScheduleGPipe", 0.75):
        assert same
        assert held <= planned <= budget < plain
