"""Ops in place that a trace writes as new results: the strides are those of what they change."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.in_place_strides import (  # noqa: E402
    AS_IT_LIES,
    strides_kept_in_place,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode  # noqa: E402
from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

OP = AS_IT_LIES[torch.ops.aten.masked_fill_.Scalar]


def test_a_new_result_lies_as_what_it_is_made_of():
    """The form with a new result writes in the order of dimensions."""
    x = torch.randn(4, 5).t()
    mask, before = x > 0, x.clone()
    found = OP(x, mask, 2.0)
    assert found.stride() == x.stride() != x.masked_fill(mask, 2.0).stride()
    assert torch.equal(found, x.masked_fill(mask, 2.0))
    assert torch.equal(x, before)


def traced(x):
    """The targets of a functional trace of a fill in place of a product."""

    def step(x):
        with FunctionalTensorMode():
            given = FunctionalTensor.to_functional(x)
            made = given * 2
            made.masked_fill_(made > 0, 0.0)
            return torch._from_functional_tensor((made + 1).elem)

    graph = make_fx(step)(x)
    assert torch.equal(graph(x), step(x))
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_only_what_lies_in_another_order_is_written_so():
    plain, turned = torch.randn(4, 5), torch.randn(5, 4).t()
    with strides_kept_in_place():
        assert OP not in traced(plain)
        assert OP in traced(turned)
    assert OP not in traced(turned)


def test_a_trace_by_functionalize_is_not_touched():
    """It uses no such mode."""
    with strides_kept_in_place():
        graph = make_fx(functionalize(lambda x: x.t().masked_fill_(x.t() > 0, 0.0)))(
            torch.ones(3, 2)
        )
    assert OP not in [node.target for node in graph.graph.nodes]
