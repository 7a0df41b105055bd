"""Which ops join a loop."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.compiled.fusible import (  # noqa: E402
    HEAVY,
    elementwise_target,
    fusible_target,
    is_draw,
)
from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402

aten = torch.ops.aten


def test_pointwise_ops_and_reductions_are_fused_and_products_are_not():
    for target in (aten.add.Tensor, aten.tanh.default, aten.sum.dim_IntList, aten.gather.default):
        assert fusible_target(target), target
    for target in (*HEAVY, aten.sort.default, aten.native_dropout.default, aten.copy_.default):
        assert not fusible_target(target), target


def test_a_reduction_is_not_by_element():
    assert elementwise_target(aten.mul.Tensor)
    assert not elementwise_target(aten.sum.dim_IntList)
    assert not elementwise_target(aten.gather.default)


def test_numbers_of_a_seed_are_fused():
    assert is_draw(inductor.random_op())
    assert fusible_target(inductor.random_op())
    assert not elementwise_target(inductor.random_op())
