"""Steps whose gradients are numbers: what asks them for more is told so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from schedsim.errors import UnsupportedError


def first_order(backward: Callable[..., Any]) -> Any:
    """A backward of an autograd function that refuses to be differentiated itself.

    As torch's `once_differentiable`, but it says so at once: gradients that are silently constant
    would train something else.
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
