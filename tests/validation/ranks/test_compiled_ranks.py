"""Compiled steps of several ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fused_steps import branched, left_by  # noqa: E402
from rank_processes import run_ranks  # noqa: E402
from schedsim.validation import plan_maker  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def _in_small_groups(rank):
    """Whether the groups of a rank are small, its runs, and how far off its gradients are."""
    patch = pytest.MonkeyPatch()
    # What groups compute, without seconds of compiling, and with the scratch of their ops.
    patch.setattr(FusedGroup, "compiled_as", lambda s, f: lambda tensors: f(*tensors))
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
