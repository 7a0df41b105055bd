"""Plans by operations instead of times, and another budget for the same model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from gelu_layers import LOSS, gelu_layers  # noqa: E402
from schedsim.validation.measure import count_flops  # noqa: E402

import schedsim  # noqa: E402
from schedsim import SchedsimError  # noqa: E402


def test_a_plan_by_operations_repeats_no_product_where_it_need_not():
    """Outputs of GELU take no product to have again."""
    model, inputs = gelu_layers()
    plain = count_flops(lambda: LOSS(model(inputs[0]), inputs[1]).backward())
    model.zero_grad()
    module = schedsim.rematerialize(model, inputs, "80%", LOSS, costs="operations", effort=0.3)
    assert count_flops(lambda: module(*inputs).backward()) == plain
    assert sum(module.run_counts.values()) > len(module.run_counts)
    assert module.plan.overhead < 0.01


def test_costs_are_known_by_name_and_of_ops():
    model, inputs = gelu_layers()
    for options in ({"costs": "flop"}, {"costs": "operations", "level": "block"}):
        with pytest.raises(SchedsimError, match="costs="):
            schedsim.rematerialize(model, inputs, "80%", LOSS, **options)
