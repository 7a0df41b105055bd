"""Views whose elements PyTorch conjugates or negates when a kernel reads them."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def conjugates(target: Any) -> bool:
    """Whether a view by `target` is conjugated later."""
    return target is aten._conj.default


def negates(target: Any) -> bool:
    """Whether a view by `target`, as the imaginary part of a conjugate, is negated later."""
    return target is aten._neg_view.default


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """A view of `tensor` that is conjugated later."""
    return torch._conj(tensor)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """A view of `tensor` that is negated later."""
    return torch._neg_view(tensor)
