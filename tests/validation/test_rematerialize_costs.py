"""Plans by operations instead of times, and another budget for the same model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import count_flops  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim import SchedsimError  # noqa: E402

LOSS = nn.functional.mse_loss


def a_model():
    """Layers whose activation function keeps as many bytes as their product."""
    torch.manual_seed(0)
    parts = (nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(6))
    return nn.Sequential(*parts), (torch.randn(512, 48), torch.randn(512, 48))


def test_a_plan_by_operations_repeats_no_product_where_it_need_not():
    """Outputs of GELU take no product to have again."""
    model, inputs = a_model()
    plain = count_flops(lambda: LOSS(model(inputs[0]), inputs[1]).backward())
    model.zero_grad()
    module = schedsim.rematerialize(model, inputs, "80%", LOSS, costs="operations", effort=0.3)
    assert count_flops(lambda: module(*inputs).backward()) == plain
    assert sum(module.run_counts.values()) > len(module.run_counts)
    assert module.plan.overhead < 0.01


def test_costs_are_known_by_name_and_of_ops():
    model, inputs = a_model()
    for options in ({"costs": "flop"}, {"costs": "operations", "level": "block"}):
        with pytest.raises(SchedsimError, match="costs="):
            schedsim.rematerialize(model, inputs, "80%", LOSS, **options)
