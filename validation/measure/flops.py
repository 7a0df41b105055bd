"""Floating-point operations of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def count_flops(function: Callable[[], Any]) -> int:
    """Operations of the matrix products, convolutions and attentions that `function` runs.

    A multiply and an add count as two. Pointwise ops are not counted.

    Examples
    --------
    >>> import torch
    >>> count_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    60
    """
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())
