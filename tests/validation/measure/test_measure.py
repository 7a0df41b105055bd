"""The meters, against sizes that are known and against each other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import (  # noqa: E402
    StorageTracker,
)


def test_a_backward_is_seen():
    """Gradients and their temporaries, by hand: x -> x * w -> sum."""
    w = torch.ones(1000, requires_grad=True)
    w.grad = torch.zeros(1000)
    with StorageTracker() as tracker:
        tracker.add([w, w.grad], "static")
        loss = (torch.ones(1000) * w).sum()  # input and product: 8000; the product dies
        tracker.mark()
        loss.backward()
    # Alive before: w, its gradient, x, the scalars. The product of the gradient is made new.
    assert tracker.live_bytes == 8000 + 4
    assert tracker.peak.total_bytes >= 8000 + 4000 + 4000
