"""Everything that is read of FSDP2 beyond its documented interface."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .prompt_buffers import release_as_before, release_promptly
from .storage_refs import share_of


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on `module` itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


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


def reduces_over_replicas(state: Any) -> bool:
    """Whether a backward that reduces leaves gradients which all replicas share."""
    return all(group.all_reduce_grads for group in groups(state))


def leaves_gathered(state: Any) -> bool:
    """Whether a backward leaves parameters gathered."""
    return not all(group.reshard_after_backward for group in groups(state))


def splits_ops(state: Any) -> bool:
    """Whether the parameters were spread over ranks before they were sharded (tensor parallel)."""
    return any(p.is_dtensor for group in groups(state) for p in group.fsdp_params)


def splits(model: nn.Module) -> bool:
    """Whether layers of `model` are computed by several ranks together (tensor parallelism)."""
    return bool(split_over(model))


def split_over(model: nn.Module) -> tuple[int, ...]:
    """The ranks that compute layers of `model` together with this one; none where none do."""
    found: set[int] = set()
    sharded: set[int] = set()
    for state in states(model):
        for group in groups(state):
            for parameter in group.fsdp_params:
                sharded.add(id(parameter.sharded_param))
                if parameter.is_dtensor:
                    names = ("_unsharded_dtensor_spec", "_tp_spec")  # the latter up to torch 2.12
                    spec = next(getattr(parameter, n) for n in names if hasattr(parameter, n))
                    found.update(spec.mesh.mesh.flatten().tolist())
    for parameter in model.parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is not None and id(parameter) not in sharded:
            found.update(mesh.mesh.flatten().tolist())
    return tuple(sorted(found))


def shares(state: Any) -> Iterator[Tensor]:
    """This rank's parts of the parameters, which are the module's parameters between gathers."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            yield parameter.sharded_param


def gathered(state: Any) -> Iterator[Tensor]:
    """The whole parameters, which have no bytes but while they are gathered."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            if isinstance(whole, Tensor):
                yield whole


def held_gradients(state: Any) -> Iterator[Tensor]:
    """Whole gradients, and partly reduced ones, that wait for a step which reduces them."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            gathered = getattr(parameter, "_unsharded_param", None)
            for whole in (parameter.unsharded_accumulated_grad, getattr(gathered, "grad", None)):
                if isinstance(whole, Tensor):
                    yield whole
        partial = getattr(group, "_partial_reduce_output", None)
        if isinstance(partial, Tensor):
            yield partial


def forget_smaller_shards(state: Any) -> None:
    """Free what ``reshard_after_forward=N`` keeps of parameters that are spread over all ranks."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            if getattr(parameter, "_sharded_post_forward_param", None) is not None:
                parameter._sharded_post_forward_param = None
                parameter._sharded_post_forward_param_data = None


def frees_at_once(state: Any) -> None:
    """Let collectives of a state return when gloo has dropped their buffers."""
    for group in groups(state):
        release_promptly(group)


def frees_when_it_may(model: nn.Module) -> None:
    """End what `frees_at_once` began, for all states in `model`."""
    for state in states(model):
        for group in groups(state):
            release_as_before(group)


def watch_gathered(state: Any, freed: Callable[[int], None]) -> None:
    """Call ``freed(bytes)`` when whole parameters that are there now are freed, once for each."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            num_bytes = share_of(whole).untyped_storage().nbytes() if whole is not None else 0
            if num_bytes:
                parameter.free_unsharded_param = _Freeing(parameter, num_bytes, freed)


def unwatch_gathered(state: Any) -> None:
    """End what `watch_gathered` began."""
    for group in groups(state):
        for parameter in group.fsdp_params:
            vars(parameter).pop("free_unsharded_param", None)


class _Freeing:
    """``free_unsharded_param`` of a parameter, once with word of it."""

    def __init__(self, parameter: Any, num_bytes: int, freed: Callable[[int], None]) -> None:
        self._parameter, self._num_bytes, self._freed = parameter, num_bytes, freed

    def __call__(self) -> None:
        del self._parameter.free_unsharded_param
        self._parameter.free_unsharded_param()
        self._freed(self._num_bytes)


@contextmanager
def reducing(model: nn.Module) -> Iterator[None]:
    """Let each backward pass in the block reduce gradients, as the last one of a step does."""
    found = list(dict.fromkeys(states(model)))
    parts = [group for state in found for group in groups(state)]
    flags = [(group.reduce_grads, group.all_reduce_grads) for group in parts]
    contexts = [(state._state_ctx, state._state_ctx.is_last_backward) for state in found]
    try:
        for group in parts:
            group.reduce_grads = group.all_reduce_grads = True
        for context, _ in contexts:
            context.is_last_backward = True
        yield
    finally:
        for group, (reduces_own, reduces_all) in zip(parts, flags, strict=True):
            group.reduce_grads, group.all_reduce_grads = reduces_own, reduces_all
        for context, was_last in contexts:
            context.is_last_backward = was_last


def forget_order(state: Any) -> None:
    """Let the coming backward gather nothing ahead."""
    for group in groups(state):
        group._post_forward_indices.clear()
        group.comm_ctx.post_forward_order.clear()
