"""Numbers that stand for the bits of a tensor."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

torch = pytest.importorskip("torch")

from schedsim.validation.guards.tensor_bits import bits_of  # noqa: E402


def test_bits_stand_for_values_places_and_strides():
    """Whatever differs gives other numbers."""
    x = torch.randn(70, 90)
    moved = x.clone()
    moved[3, 4], moved[5, 6] = x[5, 6].item(), x[3, 4].item()
    for other in (moved, -x, x.t().contiguous().t(), x.double(), x[:69]):
        assert bits_of(other) != bits_of(x)
    assert bits_of(x.clone()) == bits_of(x)
    assert bits_of(x.t()) == bits_of(x.clone().t())
    assert bits_of(x[:, ::2]) == bits_of(x.clone()[:, ::2])
    moved.untyped_storage().resize_(0)  # still can be
    for odd in (torch.tensor(True), torch.tensor([1 + 2j]), torch.zeros(0, 3)):
        assert bits_of(odd) == bits_of(odd.clone())


_KINDS = {
    torch.float64: torch.int64,
    torch.int64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.uint8: torch.uint8,
    torch.complex64: torch.int32,
    torch.complex128: torch.int64,
}


def as_integers(tensor):
    """Its numbers as integers, which share its memory."""
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return flat.view(_KINDS[tensor.dtype]).view(-1)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(list(_KINDS)), st.integers(1, 600), st.data())
def test_each_flip_of_a_bit_is_seen(dtype, size, data):
    """A flip of one bit, the sign's too, and of the same bit at two places."""
    torch.manual_seed(size)
    x = torch.randint(0, 200, (size,)).to(dtype)
    bits = as_integers(x)
    bit = data.draw(st.integers(0, 8 * bits.element_size() - 1))
    first, second = (data.draw(st.integers(0, len(bits) - 1)) for _ in range(2))
    flip = torch.tensor([1 << bit], dtype=torch.uint64).view(torch.int64).to(bits.dtype)
    expected = bits_of(x)
    bits[first : first + 1] ^= flip
    assert bits_of(x) != expected
    bits[second : second + 1] ^= flip
    assert (bits_of(x) == expected) == (first == second)


def test_a_negated_tensor_is_another():
    """Doubles with an even number of signs, bools, and negated or conjugate views."""
    x = torch.randn(64, dtype=torch.float64)
    assert bits_of(-x) != bits_of(x)
    assert bits_of(~(x > 0)) != bits_of(x > 0)
    z = torch.complex(x, x.flip(0))
    assert bits_of(z.conj()) == bits_of(z.conj().clone()) != bits_of(z)
    assert bits_of(z.conj().imag) == bits_of(z.conj().resolve_conj().imag) != bits_of(z.imag)
