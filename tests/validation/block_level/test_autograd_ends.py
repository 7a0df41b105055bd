"""The two ends of a block: gradients go in at the outlet and come out at the gate."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.autograd_ends import (  # noqa: E402
    ANCHOR,
    START,
    Gate,
    bundle_of,
    compact,
)
from schedsim.validation.block_level.bundles import BundleState  # noqa: E402


def test_gradients_go_from_the_outlet_to_the_gate():
    """No leaf takes part: the input gets no gradient of its own, the weight does."""
    x, weight = torch.randn(3), torch.randn(3, requires_grad=True)
    cell = BundleState()
    (inside,) = Gate.apply(cell, 0, ANCHOR, x)
    bundle = bundle_of((inside * weight, torch.ones(2)), cell)
    assert bundle.takes == (0,)
    given = torch.randn(3)
    cell.given = [given]
    torch.autograd.backward([bundle.outlet], [START])
    assert torch.equal(cell.gradients[0][0], given * weight)
    assert torch.equal(weight.grad, given * x)
    assert cell.given == []
    assert ANCHOR.grad is None


def test_a_gradient_that_is_there_is_added_to_in_place():
    """A later block made it: the sum is written where it lies, as in a plain step."""
    weight = torch.randn(3, requires_grad=True)
    weight.grad = torch.ones(3)
    cell = BundleState(summing=(weight,))
    bundle = bundle_of(weight * 2, cell)
    cell.given = [torch.full((3,), 5.0)]
    torch.autograd.backward([bundle.outlet], [START])
    assert torch.equal(weight.grad, torch.full((3,), 11.0))


def test_a_gradient_from_before_the_step_is_left_alone():
    weight = torch.randn(3, requires_grad=True)
    weight.grad = before = torch.ones(3)
    cell = BundleState(summing=(weight,), resident=frozenset({id(weight)}))
    bundle = bundle_of(weight * 2, cell)
    cell.given = [torch.full((3,), 5.0)]
    torch.autograd.backward([bundle.outlet], [START])
    assert weight.grad is before
    assert torch.equal(before, torch.full((3,), 11.0))


def test_what_needs_no_gradient_has_no_outlet():
    bundle = bundle_of(torch.ones(2), BundleState())
    assert (bundle.outlet, bundle.takes) == (None, ())


def test_a_piece_of_a_larger_storage_is_copied():
    """The gradient of a part would keep the gradient of the whole alive."""
    whole = torch.arange(6.0)
    piece = compact(whole[:2])
    assert torch.equal(piece, whole[:2])
    assert piece.untyped_storage().nbytes() == 8
    assert compact(whole) is whole
