"""The functions of `torch.nn.functional`, whose bodies no mode sees by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@contextmanager
def bodies_seen_by(mode: TorchFunctionMode) -> Iterator[None]:
    """Have `mode`, where it is the only one, see what functions in torch's Python code call.

    Such a function hands itself as a whole to the first mode, and its body runs without one. Here
    it does so only for another mode, or for a class of tensors with functions of its own.
    """
    own = {name: vars(functional)[name] for name in _ASKS if name in vars(functional)}

    def asking(name: str) -> Callable[..., bool]:
        as_before: Callable[..., bool] = own[name]

        def has_torch_function(*given: Any) -> bool:
            stack: Any = torch.overrides._get_current_function_mode_stack  # torch leaves it untyped
            if any(one is not mode for one in stack()):
                return as_before(*given)
            tensors = given[0] if name == "has_torch_function" else given
            return any(_has_own_functions(tensor) for tensor in tensors)

        return has_torch_function

    try:
        for name in own:
            setattr(functional, name, asking(name))
        yield
    finally:
        for name, function in own.items():
            setattr(functional, name, function)


def _has_own_functions(tensor: Any) -> bool:
    function = getattr(type(tensor), "__torch_function__", None)
    plain = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return function is not None and all(
        getattr(function, "__func__", function) is not getattr(one, "__func__", one)
        for one in plain
    )
