"""Requests to CUDA's allocator, told apart by marks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.cuda_requests import _marked, recording_requests  # noqa: E402


def test_events_belong_to_the_last_mark_before_them():
    """Marks count events from where the record began; pieces may be empty."""
    entries = [{"action": "alloc", "addr": i, "size": 10 + i} for i in range(4)]
    entries[2]["action"] = "free_completed"
    marks = [(7, ""), (8, "a"), (8, "b"), (10, "c"), (11, "d")]
    found = list(_marked(entries, 7, marks))
    assert [event.mark for event in found] == ["", "b", "b", "c"]
    assert [event.asks for event in found] == [True, True, False, True]
    assert found[3].size_bytes == 13


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_backward_is_in_its_piece():
    """Though autograd runs it in a thread of its own."""
    device = torch.device("cuda", torch.cuda.current_device())
    weight = torch.randn(300, 300, device=device, requires_grad=True)
    with recording_requests(device) as record:
        record.mark("forward")
        loss = (weight * 2).square().sum()
        record.mark("backward")
        loss.backward()
        record.mark("after")
        del loss
        events = record.events()
    pieces = {event.mark for event in events if event.asks and event.size_bytes == 360_000}
    assert pieces == {"forward", "backward"}
