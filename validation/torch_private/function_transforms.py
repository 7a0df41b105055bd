"""Whether code runs within a transform of `torch.func`: grad, vmap, jvp and others."""

from __future__ import annotations

import torch


def in_transform() -> bool:
    """Whether a transform of `torch.func` is running, whose tensors have no storage of their own.

    Examples
    --------
    >>> import torch
    >>> seen = []
    >>> def square(x):
    ...     seen.append(in_transform())
    ...     return x * x
    >>> torch.func.grad(square)(torch.ones(())).item(), seen, in_transform()
    (2.0, [True], False)
    """
    return torch._C._functorch.peek_interpreter_stack() is not None
