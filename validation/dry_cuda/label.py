"""The label of every number that comes from the dry device."""

from __future__ import annotations

import os
from typing import Any

LABEL = "PyTorch's own CUDA allocator and code; kernels not run; no times"

VARIABLE = "SCHEDSIM_DRY_CUDA"
"""Set by the launcher to the device's key; the library is then preloaded."""

PREFIX = "dry:"
"""The prefix of the device's name in ``--device dry:a100-80gb``."""


def is_dry() -> bool:
    """Whether this process runs on the dry device."""
    return bool(os.environ.get(VARIABLE))


def dry_device_name() -> str | None:
    """The key of the dry device of this process, as ``a100-80gb``; ``None`` where there is none."""
    return os.environ.get(VARIABLE) or None


def has_times(device: Any) -> bool:
    """Whether ops on `device`, a ``torch.device``, take the time of that device."""
    return not (device.type == "cuda" and is_dry())


def has_values(device: Any) -> bool:
    """Whether ops on `device`, a ``torch.device``, compute values that can be read."""
    return has_times(device) or os.environ.get("SCHEDSIM_DRY_VALUES") == "1"
