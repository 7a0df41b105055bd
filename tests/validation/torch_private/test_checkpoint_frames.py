"""What a checkpoint makes again is stored by a function of ours."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.checkpoint_frames import (  # noqa: E402
    ends_recomputation,
    remade_elsewhere,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402


def gradient(x):
    """Of two sines, of which the inner one is saved."""
    found = checkpoint(lambda y: torch.sin(torch.sin(y)), x, use_reentrant=False)
    return torch.autograd.grad(found.sum(), x)[0]


def test_what_is_made_again_is_packed_and_read_back():
    x, packed = torch.randn(5, requires_grad=True), []

    def pack(tensor):
        packed.append(tensor.clone())
        return packed[-1].clone

    expected = gradient(x)
    with remade_elsewhere(pack):
        found = gradient(x)
    assert torch.equal(found, expected)
    num_packed = len(packed)
    assert all(any(torch.equal(it, known) for it in packed) for known in (x, x.sin()))
    gradient(x)
    assert len(packed) == num_packed


def test_the_error_that_stops_a_recomputation_is_known():
    """It leaves the function as soon as all that the backward reads is there again."""
    seen = []

    def function(x):
        y = x.sin().cos()
        try:
            return y.sin()
        except Exception as error:
            seen.append(ends_recomputation(error))
            raise

    x = torch.ones(2, requires_grad=True)
    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert seen == [True]
    assert not ends_recomputation(ValueError("no"))
