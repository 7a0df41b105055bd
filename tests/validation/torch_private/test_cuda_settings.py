"""Settings of CUDA's allocator: of the environment, and of a call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure.cuda import allocator_settings  # noqa: E402
from schedsim.validation.torch_private import cuda_settings  # noqa: E402


def test_before_cuda_starts_the_environment_says_them(monkeypatch):
    """Under its new name first; what is not modelled is left out."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,backend:native")
    assert allocator_settings() == {"max_split_bytes": 64 << 20}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert allocator_settings() == {"expandable_segments": True}


def test_a_call_counts_more_than_the_environment(monkeypatch):
    """As the allocator's own snapshot says."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    found = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: found)
    assert allocator_settings() == {}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", dict)  # of a torch that does not say
    assert allocator_settings() == {"expandable_segments": True}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_settings_hold_within_their_block():
    """Segments grow there alone, and are as before behind it."""
    torch.empty(1, device="cuda")
    before = allocator_settings()
    with cuda_settings.settings_of("expandable_segments:True"):
        assert allocator_settings() == {"expandable_segments": True}
        kept = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
        [mine] = [
            s
            for s in torch.cuda.memory_snapshot()
            if 0 <= kept.data_ptr() - s["address"] < s["total_size"]
        ]
        assert mine["is_expandable"]
        del kept
    assert allocator_settings() == before
