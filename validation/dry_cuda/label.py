"""What is said of every number that comes from the dry device."""

from __future__ import annotations

import os

LABEL = "PyTorch's own CUDA allocator and code; kernels not run; no times"

VARIABLE = "SCHEDSIM_DRY_CUDA"
"""Set by the launcher to the device's key; the library is then preloaded."""


def is_dry() -> bool:
    """Whether this process runs on the dry device."""
    return bool(os.environ.get(VARIABLE))


def dry_device_name() -> str | None:
    """The key of the dry device of this process, as ``a100-80gb``; ``None`` where there is none."""
    return os.environ.get(VARIABLE) or None
