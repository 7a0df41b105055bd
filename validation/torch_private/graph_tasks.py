"""The backward pass that is running, and the request that it was started with."""

from __future__ import annotations

from collections.abc import Callable

import torch


def goes_to_all_leaves() -> bool:
    """Whether it is a plain ``backward()``, and not for the gradients of some tensors alone."""
    valid: bool = torch.autograd._is_checkpoint_valid()  # type: ignore[no-untyped-call]
    return valid


def in_backward() -> bool:
    """Whether a backward pass is running on this thread, as where a hook of a gradient runs."""
    return bool(torch._C._current_graph_task_id() != -1)


def backward_number() -> int:
    """A number of the backward pass that is running on this thread, which no other one has."""
    return int(torch._C._current_graph_task_id())


def keeps_graph() -> bool:
    """Whether the running backward leaves its graph for another one (``retain_graph=True``)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def when_backward_ends(action: Callable[[], None]) -> None:
    """Call `action` at the end of the running backward pass, after what was asked for before."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
