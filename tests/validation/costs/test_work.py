"""Arithmetic and memory traffic of an op, by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from costed_steps import call_named, two_layers  # noqa: E402
from made_programs import call, tensor  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.program import Program, Ref  # noqa: E402
from schedsim.validation.costs.work import work_of  # noqa: E402
from torch import nn  # noqa: E402

aten = torch.ops.aten


def test_flops_and_bytes_by_hand():
    """64 x 32 x 32: 2 x 64 x 32 x 32 flops; 64 x 32 in and out, 32 x 32 of weights, 32 of bias."""
    captured = two_layers()
    work = work_of(captured.program, call_named(captured, "0.addmm"))
    assert work.flops == 2 * 64 * 32 * 32
    assert work.moved_bytes == 4 * (2 * 64 * 32 + 32 * 32 + 32)
    assert (work.kind, work.dtype) == ("matmul", "fp32")
    relu = work_of(captured.program, call_named(captured, "1.relu"))
    assert (relu.kind, relu.moved_bytes) == ("memory", 4 * 2 * 64 * 32)


def test_attention_flops():
    """Two products forward, five backward, over B H T^2 d multiply-adds each."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            x = x * self.scale
            return F.scaled_dot_product_attention(x, x, x).sum()

    captured = capture(Attention(), (torch.randn(2, 3, 16, 8),))
    once = 2 * 2 * 3 * 16 * 16 * 8
    works = {
        name: work_of(captured.program, call_named(captured, name))
        for name in ("flash_attention", "grad.flash_attention")
    }
    assert works["flash_attention"].flops == 2 * once
    assert works["grad.flash_attention"].flops == 5 * once
    assert works["flash_attention"].kind == "attention"


def test_of_a_table_only_the_rows_looked_up_are_read():
    """3 rows of 4 floats in and out, and 3 indices of 8 bytes."""
    program = Program()
    table, ids = tensor(program, (1000, 4)), tensor(program, (3,), dtype=torch.int64)
    made = call(
        program, "rows", aten.embedding.default, (Ref(table), Ref(ids)), tensor(program, (3, 4))
    )
    work = work_of(program, made)
    assert work.moved_bytes == 2 * 3 * 4 * 4 + 3 * 8
    assert (work.kind, work.flops) == ("memory", 12)


def test_expanded_dimensions_count_once():
    """A bias of 8 floats, seen as 4 x 8; and a tensor that is read twice is one."""
    program = Program()
    bias, x = tensor(program, (4, 8), stride=(0, 1)), tensor(program, (4, 8))
    made = call(program, "add", aten.add.Tensor, (Ref(bias), Ref(bias)), x)
    assert work_of(program, made).moved_bytes == 4 * (8 + 32)


@pytest.mark.parametrize(
    ("dtype", "says"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16"), (torch.float64, "fp32")]
)
def test_arithmetic_is_in_the_format_of_the_output(dtype, says):
    """Or of the first input of floats."""
    program = Program()
    x, mask = tensor(program, dtype=dtype), tensor(program, dtype=torch.bool)
    assert work_of(program, call(program, "op", aten.gt.Scalar, (Ref(x), 0), mask)).dtype == says


def test_convolutions_are_counted_by_torchs_formula():
    """2 x 5 x 5 x 3 x 3 x 4 x 8 flops a sample."""
    program = Program()
    x, w, y = (tensor(program, shape) for shape in ((2, 4, 5, 5), (8, 4, 3, 3), (2, 8, 5, 5)))
    given = (Ref(x), Ref(w), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    work = work_of(program, call(program, "conv", aten.convolution.default, given, y))
    assert (work.kind, work.flops) == ("convolution", 2 * 2 * 8 * 25 * 4 * 9)
