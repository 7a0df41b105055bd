"""How long AOTAutograd holds the gradients that the caller gives to a compiled backward."""

from __future__ import annotations

import torch

from .tested_versions import minor_version

_RELEASED = (2, 13)


def are_held() -> bool:
    """Whether given gradients live until the backward is over, whatever the backward does.

    Before torch 2.13 the Python function around a compiled backward holds them in its arguments.
    """
    return minor_version(torch.__version__) < _RELEASED
