"""Who shares memory with whom, and for how long."""

from __future__ import annotations

import contextlib

import torch
from schedsim.validation.torch_private.fake_tensors import fake_mode, is_fake
from schedsim.validation.torch_private.storage_refs import (
    DataPlaces,
    is_gone,
    key_of,
    share_of,
    storage_key,
    strided_parts,
    unseen_writes,
    version_of,
    weakly,
)


def test_views_share_a_key_and_copies_do_not():
    """Fake tensors do so too."""
    for mode in (contextlib.nullcontext(), fake_mode()):
        with mode:
            x = torch.zeros(4, 4)
            assert is_fake(x) == (not isinstance(mode, contextlib.nullcontext))
            assert storage_key(x.t()[1:]) == storage_key(x) == key_of(x.untyped_storage())
            copy = x.clone()
            assert storage_key(copy) != storage_key(x)


def test_a_weak_reference_holds_nothing():
    """It is gone when the last view is."""
    x = torch.zeros(4)
    view, reference = x[1:], weakly(x)
    del x
    assert not is_gone(reference)
    del view
    assert is_gone(reference)


def test_writes_count_but_for_those_that_shall_not():
    """A backward checks the count of what was saved for it."""
    weight = torch.ones(2, requires_grad=True)
    x = torch.ones(2)
    before = version_of(x)
    out = (weight * x).sum()
    with unseen_writes([x]):
        x.zero_()
        assert version_of(x) == before + 1
        x.fill_(1)
    assert version_of(x) == before
    out.backward()
    x.view(2, 1).zero_()
    assert version_of(x) == before + 1


def test_a_plain_tensor_is_all_of_its_share():
    """Sharded ones are in the tests of ranks."""
    x = torch.zeros(2)
    assert share_of(x) is x


def test_data_is_found_again_where_it_was_replaced_and_where_it_grew():
    """An op may enlarge a tensor that it is given, in its own storage or in another one."""
    replaced, grown, same = torch.zeros(2), torch.empty(0), torch.ones(3)
    empty = torch.ones(2)[:0]
    places = DataPlaces([replaced, grown, same, empty])
    replaced.data = torch.ones(2)
    torch.add(torch.ones(4), 1, out=grown)
    empty.resize_(2)
    assert [id(t) for t in places.moved()] == [id(replaced)]
    assert [id(t) for t in places.resized()] == [id(grown), id(empty)]
    places.restore()
    assert places.moved() == places.resized() == []
    assert replaced.tolist() == [0, 0]
    assert grown.shape == empty.shape == (0,)


def test_the_parts_of_sparse_tensors_have_storages():
    """Indices and values, of each layout; a strided tensor is its own part."""
    x = torch.eye(4)
    assert [part is x for part in strided_parts(x)] == [True]
    for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc(), x.to_sparse_bsr((2, 2))):
        parts = strided_parts(sparse)
        assert len(parts) == (2 if sparse.layout is torch.sparse_coo else 3)
        assert sum(part.untyped_storage().nbytes() for part in parts) > 0
