"""The casts that a block of autocast remembers, so that a parameter is cast once in it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def remembered_cast(device: str) -> Any:
    """An object that stands for the present block of autocast; ``None`` outside of any.

    It is the node by which autograd casts a parameter of no elements. All forwards in one block
    cast a parameter by one node, where a gradient is added in the block's type.

    Examples
    --------
    >>> import torch
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     first, second = remembered_cast("cpu"), remembered_cast("cpu")
    >>> first is second
    True
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     remembered_cast("cpu") is first
    False
    >>> remembered_cast("cpu") is None
    True
    """
    if not (torch.is_autocast_enabled(device) and torch.is_autocast_cache_enabled()):
        return None
    nothing, other = _of_no_elements(device)
    with torch.enable_grad():
        node = torch.mm(nothing, other).grad_fn
    return None if node is None else node.next_functions[0][0]


@cache
def _of_no_elements(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(0, 1, device=device, requires_grad=True), torch.empty(1, 0, device=device)
