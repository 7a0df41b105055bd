"""The settings of CUDA's allocator in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def settings_in_force() -> str:
    """The settings as ``PYTORCH_ALLOC_CONF`` writes them, also where a call has changed them."""
    cuda: Any = torch.cuda
    known = cuda.memory._snapshot().get("allocator_settings", {}) if cuda.is_initialized() else {}
    text = known.get("PYTORCH_CUDA_ALLOC_CONF")
    if text is not None:
        return str(text)
    return next(filter(None, map(os.environ.get, _VARIABLES)), "")


def set_settings(text: str) -> None:
    """Replace all settings; memory that was allocated before stays where it is."""
    found: Any = torch._C
    change = getattr(found, "_accelerator_setAllocatorSettings", None)
    change = change or found._cuda_cudaCachingAllocator_set_allocator_settings
    change(text or "expandable_segments:False")


@contextmanager
def settings_of(text: str) -> Iterator[None]:
    """Allocate by other settings within the block; nothing that it allocates may outlive it."""
    before = settings_in_force()
    torch.cuda.empty_cache()
    set_settings(text)
    try:
        yield
    finally:
        torch.cuda.empty_cache()
        set_settings(before)
