"""The store of PyTorch's ``fake`` process group, whose import makes that backend known."""

from __future__ import annotations

from typing import Any

from torch.testing._internal.distributed.fake_pg import FakeStore


def fake_store() -> Any:
    """A store for ``init_process_group("fake", store=)``: nobody answers, and nobody has to."""
    return FakeStore()
