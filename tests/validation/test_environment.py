"""The machine and the versions that a measurement belongs to."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation import environment  # noqa: E402
from schedsim.validation.dry_cuda import LABEL  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402


def test_another_process_is_not_on_the_device():
    """In Python, nothing starts over."""
    with pytest.raises(SchedsimError) as caught:
        environment.resolve_device("dry:h200")
    assert "--device h200 -- COMMAND" in caught.value.hint


def test_the_environment_is_labelled(monkeypatch):
    """Every result that comes from the device says so."""
    monkeypatch.setenv("SCHEDSIM_DRY_CUDA", "h200")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "dry NVIDIA H200")
    assert environment.environment("cuda")["dry"] == LABEL
    assert "dry" not in environment.environment("cpu")
