"""A refusal offers another way to spend less only where a plan with it was found."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from step_models import TinyGPT, make_step, token_loss  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def refusal(model, inputs, loss, budget, **options):
    """The refusal of a step within `budget`."""
    with pytest.raises(InfeasibleBudgetError) as error:
        schedsim.rematerialize(model, inputs, budget, loss, level="op", effort=0.1, **options)
    return error.value


@pytest.mark.slow
def test_micro_batches_are_offered_where_they_fit_alone():
    """Just below the least of the whole batch they fit; below what parameters take, nothing."""
    torch.manual_seed(0)
    model, ids = TinyGPT(dropout=0.0), torch.randint(0, 61, (8, 16))
    least = refusal(model, (ids, ids), token_loss, 1000)
    assert "accumulate" not in least.hint
    assert "chunk" not in least.hint
    near = refusal(model, (ids, ids), token_loss, int(0.95 * least.min_feasible_bytes))
    assert near.hint.startswith("accumulate='auto' (micro-batches), or ")
    assert f"budget={near.min_feasible_bytes}" in near.hint
    module = schedsim.rematerialize(
        model, (ids, ids), near.budget_bytes, token_loss, level="op", accumulate="auto", effort=0.1
    )
    assert module.plan.peak_bytes <= near.budget_bytes


@pytest.mark.slow
def test_no_micro_batches_are_offered_that_would_be_another_step():
    """A batch norm in training looks at the whole batch; and there is no head to cut."""
    model, inputs, loss = make_step("resnet")
    least = refusal(model, inputs, loss, 1000).min_feasible_bytes
    assert refusal(model, inputs, loss, int(0.95 * least)).hint == f"budget={least}"


def test_no_micro_batches_are_offered_that_need_more():
    """Where weights are large and the batch is small, two gradients of each weight are more."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(2, 64)
    loss = nn.functional.mse_loss
    least = refusal(model, (x, x), loss, 1000).min_feasible_bytes
    assert refusal(model, (x, x), loss, least - 8).hint == f"budget={least}"
