"""Saved tensors: noted by place where they are views of an input, held otherwise."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.bundles import (  # noqa: E402
    BundleState,
    Place,
    holding,
    packing,
    place_in,
)
from schedsim.validation.torch_private.storage_refs import storage_key  # noqa: E402


def test_a_view_of_an_input_is_noted_by_place_and_taken_from_another():
    """The input may die and be made again: what was noted is a view of the new one."""
    x, cell = torch.arange(12.0).view(3, 4), BundleState()
    pack, unpack = packing({storage_key(x): (5, 0, x.dtype)}, cell)
    noted, kept = pack(x[:, 1:3].t()), pack(torch.ones(2))
    assert noted == Place(5, 0, (2, 3), (1, 4), 1)
    assert torch.equal(unpack(kept), torch.ones(2))
    assert set(cell.kept) == {storage_key(x), storage_key(kept)}
    cell.inputs = {5: [x + 100]}
    assert torch.equal(unpack(noted), (x + 100)[:, 1:3].t())


def test_a_view_of_another_type_is_kept_itself():
    """A place tells the shape of a view, and not how its bytes are read."""
    x, cell = torch.arange(4.0), BundleState()
    pack, _ = packing({storage_key(x): (1, 0, x.dtype)}, cell)
    assert isinstance(pack(x.view(torch.int32)), torch.Tensor)


def test_what_is_held_is_found_again_in_the_output():
    """The output of a block may be copied to the host, and with it what its bundle has of it."""
    out, cell = torch.arange(6.0), BundleState()
    pack, unpack = holding({}, cell)
    held = pack(out[2:])
    assert torch.equal(unpack(held), out[2:])
    place_in(cell, 7, out)
    assert held.content == Place(7, 0, (4,), (1,), 2)
    held.take_from(6, out)
    assert isinstance(held.content, Place)
    held.take_from(7, out)
    assert torch.equal(held.content, out[2:])


def test_a_storage_that_is_gone_is_not_taken_for_a_new_one():
    """An op may keep a tensor for a node that is dropped: the next storage is made in its place."""
    cell = BundleState()
    pack, _ = packing({}, cell)
    pack(torch.ones(8))
    assert not any(storage_key(torch.ones(8)) in cell.kept for _ in range(100))
    assert len(cell.kept) == 1
