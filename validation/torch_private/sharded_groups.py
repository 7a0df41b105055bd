"""Everything that is read of FSDP2 beyond its documented interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on `module` itself."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def state_of(module: Any) -> Any:
    """The state of a sharded module."""
    return module._get_fsdp_state()


def states(model: nn.Module) -> Iterator[Any]:
    """The states of the sharded modules in `model`."""
    for module in model.modules():
        if is_sharded(module):
            yield state_of(module)


def is_grouped(module: Any) -> bool:
    """Whether `module` was sharded in one call with others, to be gathered together."""
    return len(state_of(module)._modules) > 1


def sharded_with(module: Any) -> tuple[nn.Module, ...]:
    """The modules that were sharded in one call with `module`, itself among them."""
    return tuple(state_of(module)._modules)


def groups(state: Any) -> list[Any]:
    """The parameter groups of a state, which are gathered and reduced each in one piece."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    one = state._fsdp_param_group
    return [] if one is None else [one]


def gathered_bytes(state: Any) -> int:
    """Bytes that gathering a module's parameters brings to each rank."""
    total = 0
    for group in groups(state):
        for parameter in group.fsdp_params:
            dtype = getattr(parameter, "param_dtype", None) or parameter.orig_dtype
            total += parameter._orig_size.numel() * dtype.itemsize
    return total


def prefetches(state: Any) -> bool:
    """Whether the user has said what to gather ahead."""
    return bool(state._states_to_forward_prefetch or state._states_to_backward_prefetch)


def reduces(state: Any) -> bool:
    """Whether a backward leaves sharded gradients."""
    return all(group.reduce_grads for group in groups(state))


def forget_order(state: Any) -> None:
    """Let the coming backward gather nothing ahead."""
    for group in groups(state):
        group._post_forward_indices.clear()
        group.comm_ctx.post_forward_order.clear()
