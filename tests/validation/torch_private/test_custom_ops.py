"""What a user gave for an op of torch.library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.custom_ops import given_functions  # noqa: E402


def test_functions_that_a_user_gave_are_found():
    """Those of the kernel, of fakes and of the backward; none of what torch made."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    def fake(x):
        return torch.empty_like(x)

    def backward(context, gradient):
        return gradient * 2.0

    op = torch.library.custom_op("schedsim_tests::scaled_given", scaled, mutates_args=())
    op.register_fake(fake)
    op.register_autograd(backward)
    assert op(torch.ones(2)).tolist() == [2.0, 2.0]
    assert set(given_functions(op).values()) == {scaled, fake, backward}
    assert given_functions(scaled) is None
