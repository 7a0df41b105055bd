"""Canaries of views that are conjugated or negated later."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private import lazy_views  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


class Seen(TorchDispatchMode):
    """The ops that are called."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.targets = [*getattr(self, "targets", ()), function]
        return function(*args, **(kwargs or {}))


def test_the_imaginary_part_of_a_conjugate_is_conjugated_and_negated_by_views():
    with Seen() as seen:
        part = torch.randn(4, dtype=torch.cfloat).conj().imag
    assert part.is_neg()
    assert sum(map(lazy_views.conjugates, seen.targets)) == 2  # there and back
    assert sum(map(lazy_views.negates, seen.targets)) == 1


def test_views_with_these_bits_have_the_memory_of_their_tensor():
    tensor = torch.randn(4, dtype=torch.cfloat)
    conjugated, negated = lazy_views.conjugated(tensor), lazy_views.negated(tensor.real)
    assert conjugated.is_conj()
    assert negated.is_neg()
    assert {conjugated.data_ptr(), negated.data_ptr()} == {tensor.data_ptr()}
    assert torch.equal(negated, -tensor.real)
