"""The request that the running backward pass was started with."""

from __future__ import annotations

import torch


def goes_to_all_leaves() -> bool:
    """Whether it is a plain ``backward()``, and not for the gradients of some tensors alone."""
    valid: bool = torch.autograd._is_checkpoint_valid()  # type: ignore[no-untyped-call]
    return valid
