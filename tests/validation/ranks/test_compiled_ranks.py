"""Compiled steps of several ranks."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fused_steps import Branches, branched, left_by  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.whole_step import plan_maker  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def _by_op():
    """What groups compute, without seconds of compiling, and with the scratch of their ops.

    That is measured apart: later tests may run in this process.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(FusedGroup, "compiled_as", lambda s, f: lambda tensors: f(*tensors))
    patch.setenv("SCHEDSIM_CACHE_DIR", f"{os.environ['SCHEDSIM_CACHE_DIR']}-by-op")
    return patch


def _in_small_groups(rank):
    """Whether the groups of a rank are small, its runs, and how far off its gradients are."""
    patch = _by_op()
    patch.setattr(plan_maker, "kept_within", lambda m, s, planned, b, given: planned)
    model, inputs, loss = branched()
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    options = {"compile": True, "effort": 0.2}
    module = schedsim.rematerialize(model, inputs, "100%", loss, **options)
    nn.parallel.DistributedDataParallel(module)
    module.replan(1)
    with pytest.raises(InfeasibleBudgetError) as refused:
        module.prepare(*inputs)
    module.replan(refused.value.plan.min_feasible_bytes)
    module.prepare(*inputs)
    found = left_by(module, model, inputs)
    off = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    patch.undo()
    return "groups are small" in module.report(), tuple(module.plan.schedule.names), off


@pytest.mark.slow
def test_ranks_take_their_step_apart_alike():
    """Each measures its own times; one plan is made of the largest."""
    rows = run_ranks(_in_small_groups, 2)
    assert all(is_small and off < 1e-5 for is_small, _, off in rows)
    assert len({names for _, names, _ in rows}) == 1


def _gradients(model, step):
    model.zero_grad()
    step()
    found = [p.grad for p in model.parameters()]
    return [g.to_local() if hasattr(g, "to_local") else g for g in found]


def _in_place(rank, kind, budgets):
    """Whether the groups of a rank are small, and how far off its gradients are."""
    from torch.distributed.fsdp import fully_shard

    patch = _by_op()
    torch.manual_seed(0)
    model = nn.Sequential(Branches(1), Branches(1))
    if kind == "sharded":
        for module in (*model, model):
            fully_shard(module)
    torch.manual_seed(rank)
    x, target = torch.randn(512, 16), torch.randn(512, 16)
    run = nn.parallel.DistributedDataParallel(model) if kind == "averaged" else model

    def step():
        nn.functional.mse_loss(run(x), target).backward()

    expected, off = [g.clone() for g in _gradients(model, step)], 0.0
    options = {"compile": True, "effort": 0.2, "check": "never"}
    schedsim.rematerialize(model, x, budgets[rank], in_place=True, **options)
    for _ in range(8):
        found = _gradients(model, step)
        off = max(off, *(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)))
    patch.undo()
    session = session_in(model)
    assert session.peak_bytes <= session.budget_bytes
    return any(part.group_size is not GroupSize.LARGE for part in session.parts), off


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["averaged", "sharded"])
def test_one_rank_in_small_groups_beside_one_in_large_ones(kind):
    """Gradients come in one order on both, and are averaged with each other's."""
    rows = run_ranks(_in_place, 2, kind, (430_000, "100%"))
    assert [is_small for is_small, _ in rows] == [True, False]
    assert all(off < 1e-6 for _, off in rows)


class _Exchanging(nn.Module):
    """Ranks add up a tensor in the forward, and its gradient in the backward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        from torch.distributed import _functional_collectives as collectives

        y = torch.tanh(self.linear(x))
        return y * collectives.all_reduce(y.mean(0), "sum", torch.distributed.group.WORLD)


def _exchanging(rank):
    torch._dynamo.reset()
    torch.manual_seed(rank)
    model, x = _Exchanging(), torch.randn(64, 16)
    model(x).sum().backward()
    expected = model.linear.weight.grad.clone()
    with pytest.warns(PlainStepWarning, match="other ranks wait for its op .*all_reduce"):
        schedsim.rematerialize(model, x, "100%", in_place=True, effort=0.2)
    model.zero_grad()
    model(x).sum().backward()
    return torch.equal(model.linear.weight.grad, expected)


@pytest.mark.slow
def test_ops_that_all_ranks_run_together_stay_as_they_are():
    """Of a model without a DTensor nobody knows which ranks would have to agree."""
    assert run_ranks(_exchanging, 2) == [True, True]
