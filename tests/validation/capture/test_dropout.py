"""Dropout of a captured graph against the plain model's kernels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.dropout import dropout_by_factor, eager_factor  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.05, 0.1, 0.15, 0.2, 0.35, 0.5, 0.7, 0.85])
def test_forward_and_backward_are_those_of_eager_to_the_bit(p, dtype):
    """Where the traced op would differ it is replaced; where it is kept it must not."""
    x = torch.randn(37, 111, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(x)
    torch.manual_seed(4)
    plain = torch.nn.functional.dropout(x, p, training=True)
    (plain_gradient,) = torch.autograd.grad(plain, x, gradient)
    factor = eager_factor(p, dtype)
    torch.manual_seed(4)
    with torch.no_grad():
        if factor is None:
            out, mask = aten.native_dropout(x, p, True)
        else:
            out, mask = dropout_by_factor(x, p, True, factor)
        scale = 1.0 / (1.0 - p) if factor is None else factor
        back = aten.native_dropout_backward(gradient, mask, scale)
    assert torch.equal(plain, out)
    assert torch.equal(plain_gradient, back)


def test_the_traced_op_does_differ_for_some_probability():
    """Else there were nothing to replace."""
    assert eager_factor(0.15, torch.float32) is not None
    assert eager_factor(0.5, torch.float32) is None
    assert eager_factor(0.0, torch.float32) is None
