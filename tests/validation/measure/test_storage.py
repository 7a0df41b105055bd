"""Bytes of tensors, exactly: every storage that an op makes, from its making to its end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import (  # noqa: E402
    StorageTracker,
    storage_bytes,
)


def test_views_share_their_storage():
    """A view, a transpose and the base are one storage; in-place ops make none."""
    with StorageTracker() as tracker:
        x = torch.zeros(100, 10)
        y = x[:50].t()
        y.add_(1)
        assert tracker.live_bytes == 4000
        z = x * 2
        assert tracker.live_bytes == 8000
        del z
        assert tracker.live_bytes == 4000
    assert storage_bytes([x, y]) == 4000


def test_peaks_are_told_by_kind():
    """What was there, what was made, and what came and went in between."""
    weight = torch.zeros(10)
    with StorageTracker() as tracker:
        tracker.add(weight, "static")
        kept = torch.zeros(100)
        tracker.label_fresh("activations")
        tracker.mark()
        made = (kept * 2).exp()  # the product dies: 400 B of workspace
        tracker.label_fresh("activations")
    assert tracker.kinds_at_peak() == {"static": 40, "activations": 800, "workspace": 400}
    assert made.numel() == 100


def test_a_sparse_tensor_is_its_indices_and_values():
    """As the gradient of an embedding, which an optimizer may hold."""
    values, indices = torch.ones(3), torch.tensor([[0, 2, 5]])
    assert storage_bytes(torch.sparse_coo_tensor(indices, values, (9,))) == 3 * 4 + 3 * 8


def test_tensors_without_storage_have_no_bytes():
    """Zeros that stand for tangents raised where their place was asked for."""
    with torch.autograd.forward_ad.dual_level():
        inside = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        zero = torch._efficientzerotensor(4)
        assert storage_bytes([inside, zero, torch.ones(4).to_mkldnn()]) == 12
    seen = []
    torch.func.grad(lambda x: seen.append(storage_bytes([x])) or x.sum())(torch.ones(3))
    assert seen == [0]


def test_lists_in_lists_are_walked_through():
    """Plain tensors beside trees of them; a shared storage counts once."""
    x, y, z = torch.zeros(1), torch.zeros(2), torch.nn.Parameter(torch.zeros(3))
    assert storage_bytes([x, [y, {"a": z}], (x, None), z, 3]) == 4 + 8 + 12
