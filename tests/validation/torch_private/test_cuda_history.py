"""The history of CUDA's allocator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.torch_private import cuda_history  # noqa: E402


def test_of_a_history_requests_and_completed_releases_are_taken(monkeypatch):
    """Requests of the device asked for; segments, and releases that wait for a stream, are none."""
    entries = [{"action": name, "addr": 1, "size": 2} for name in ("alloc", "segment_alloc")]
    entries += [{"action": f"free_{name}", "addr": 1, "size": 2} for name in ("requested",)]
    entries += [{"action": "free_completed", "addr": 1, "size": 2}]
    found = {"device_traces": [[], entries]}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: found)
    assert cuda_history.requests_in_history(0) == []
    actions = [event["action"] for event in cuda_history.requests_in_history(1)]
    assert actions == ["alloc", "free_completed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_history_has_sizes_as_asked_for():
    cuda_history.start_history(1000)
    kept = torch.empty(1000, dtype=torch.uint8, device="cuda")
    [event] = cuda_history.requests_in_history(torch.cuda.current_device())
    cuda_history.stop_history()
    assert (event["action"], event["size"], event["addr"]) == ("alloc", 1000, kept.data_ptr())
