"""Grouped products of every type that kernels take are traced as they run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.fake_tensors import fake_mode  # noqa: E402
from schedsim.validation.torch_private.grouped_products import (  # noqa: E402
    WideGroupedProducts,
    grouped_products,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

if not hasattr(torch, "_grouped_mm"):
    pytest.skip("this torch has no grouped product", allow_module_level=True)

SHAPES = {
    "rows": ((12, 8), (3, 8, 16)),
    "groups": ((3, 4, 8), (3, 8, 16)),
    "columns": ((3, 4, 8), (8, 16)),
    "between": ((4, 16), (16, 8)),
}


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shapes_and_strides_are_those_of_the_kernel(form, dtype):
    def product(first, second, offsets):
        return torch._grouped_mm(first, second, offs=None if form == "groups" else offsets)

    first, second = (torch.randn(shape).to(dtype) for shape in SHAPES[form])
    offsets = torch.tensor([4, 4, 12], dtype=torch.int32)
    expected = product(first, second, offsets)
    mode = fake_mode()
    with grouped_products(), mode:
        found = product(*(mode.from_tensor(t) for t in (first, second, offsets)))
    assert (found.shape, found.stride(), found.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )


@pytest.mark.parametrize("form", SHAPES)
def test_products_of_float64_are_those_of_float32(form):
    def product(first, second, offsets):
        return torch._grouped_mm(first, second, offs=None if form == "groups" else offsets)

    first, second = (torch.randn(shape) for shape in SHAPES[form])
    # What lies behind the last group is not written.
    last = 16 if form == "columns" else 12
    offsets = torch.tensor([4, 4, last], dtype=torch.int32)
    expected = product(first, second, offsets)
    with WideGroupedProducts():
        found = product(first.double(), second.double(), offsets)
    torch.testing.assert_close(found.float(), expected)


class Experts(nn.Module):
    """Rows by the expert of each, one product for all; what it does depends on no tracer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 8) / 8)

    def forward(self, x, ends):
        if torch.compiler.is_compiling():
            raise AssertionError("not traced directly")
        for _ in range(3):
            x = torch._grouped_mm(x, self.weight, offs=ends).sin()
        return x


def test_a_mixture_of_experts_is_captured_as_it_runs():
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(12, 8)
    ends = torch.tensor([2, 7, 12], dtype=torch.int32)
    model(x, ends).square().mean().backward()
    expected, model.weight.grad = model.weight.grad, None
    planned = schedsim.rematerialize(
        model, (x, ends), "100%", lambda out: out.square().mean(), level="op", effort=0.1
    )
    planned(x, ends).backward()
    assert torch.equal(model.weight.grad, expected)
