"""Whether ops are traced, transformed by `torch.func`, or run on tensors with tangents."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def is_traced() -> bool:
    """Whether the ops that run are recorded by others, or run without values: no step of a loop.

    By Dynamo, `torch.export`, `torch.jit.trace` or `make_fx`, or on fake tensors.

    Examples
    --------
    >>> import torch
    >>> seen = []
    >>> _ = torch.jit.trace(lambda x: (seen.append(is_traced()), x + 1)[1], torch.ones(2))
    >>> seen[0], is_traced()
    (True, False)
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    return get_proxy_mode() is not None or torch._C._get_dispatch_mode(_FAKE) is not None


def in_transform() -> bool:
    """Whether a transform of `torch.func` is running, whose tensors have no storage of their own.

    Or a level of forward-mode differentiation, whose tangents no backward's graph passes on.

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
    is_forward_mode = torch.autograd.forward_ad._current_level >= 0
    return is_forward_mode or torch._C._functorch.peek_interpreter_stack() is not None
