"""What is said of every number that comes from the dry device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.dry_cuda import (  # noqa: E402
    has_times,
    has_values,
)


def test_what_the_dry_device_has(monkeypatch):
    """No times ever, values where they were asked for; the CPU has both."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert has_times(cuda)
    assert has_values(cuda)
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    assert (has_times(cuda), has_times(cpu), has_values(cuda)) == (False, True, False)
    monkeypatch.setenv("SCHEDSIM_DRY_VALUES", "1")
    assert has_values(cuda)
    assert not has_times(cuda)
