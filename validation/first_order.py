"""Backwards that cannot be differentiated again, and say so when they are asked to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from schedsim.errors import UnsupportedError


def first_order(backward: Callable[..., Any]) -> Any:
    """Make the backward of an autograd function refuse to be differentiated itself.

    Torch's `once_differentiable` does the same, but this function refuses at once: gradients that
    are silently constant would train something else.
    """
    once: Callable[..., Any] = once_differentiable(backward)

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise UnsupportedError(
                "create_graph=True: the backward of a schedule is no graph, and cannot be "
                "differentiated again",
                hint="take the first derivative inside of forward or of the loss, by "
                "torch.autograd.grad, where it is planned with the rest",
            )
        return once(ctx, *gradients)

    return checked
