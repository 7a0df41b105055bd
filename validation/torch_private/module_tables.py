"""The tables of a module, buffers and hooks among them, and how the module is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm

__all__ = [
    "AnyBatchNorm",
    "as_itself",
    "attributes_of",
    "backward_hooks_of",
    "buffers_of",
    "call_as_itself",
    "call_instead",
    "children_of",
    "gradient_hooks",
    "parameters_of",
    "replacement_of",
    "set_buffers",
    "step_hooks",
    "tables_of",
]


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Name -> buffer of `module` itself; writing to the table registers and checks nothing."""
    return module._buffers


def set_buffers(module: nn.Module, table: dict[str, Tensor | None]) -> None:
    """Give `module` another table of buffers."""
    module._buffers = table


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Name -> parameter of `module` itself."""
    return module._parameters


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Name -> submodule, those under two names under both."""
    return module._modules


def tables_of(module: nn.Module) -> dict[str, Any]:
    """The tables by which a module has its parameters, buffers and children, under their names."""
    names = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    return {name: getattr(module, name) for name in names}


def attributes_of(model: nn.Module) -> list[Tensor]:
    """The tensors that modules hold beside parameters and buffers.

    As the weight that `torch.nn.utils.weight_norm` or pruning makes anew in each forward.
    """
    return [it for module in model.modules() for it in vars(module).values() if type(it) is Tensor]


def step_hooks(parameter: Tensor) -> dict[int, Any] | None:
    """The hooks that run when a gradient has been accumulated, in torch's own table."""
    return getattr(parameter, "_post_accumulate_grad_hooks", None)


def gradient_hooks(parameter: Tensor) -> bool:
    """Whether something is called with the gradient of `parameter`, or after it."""
    return bool(getattr(parameter, "_backward_hooks", None) or step_hooks(parameter))


def backward_hooks_of(module: nn.Module) -> list[Any]:
    """What is called in the backward of `module`, before it and after it."""
    return [*module._backward_pre_hooks.values(), *module._backward_hooks.values()]


def call_instead(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Have ``module(...)`` run `call`; ``None`` for its own. Copies and pickles leave it behind."""
    own: Any = module
    own._compiled_call_impl = call


def replacement_of(module: nn.Module) -> Callable[..., Any] | None:
    """The function that ``module(...)`` runs in place of its own call; ``None`` if none."""
    found: Callable[..., Any] | None = module._compiled_call_impl
    return found


def call_as_itself(module: nn.Module) -> Callable[..., Any]:
    """The call of `module` with its hooks, whatever was put in its place."""
    own: Any = module
    found: Callable[..., Any] = own._call_impl
    return found


@contextmanager
def as_itself(model: nn.Module) -> Iterator[None]:
    """Let `model` be called in the block as if it had no budget."""
    call = replacement_of(model)
    call_instead(model, None)
    try:
        yield
    finally:
        call_instead(model, call)
