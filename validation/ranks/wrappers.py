"""Modules that are wrapped around a model to train it on many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from schedsim.errors import UnsupportedError

from ..torch_private.process_groups import active_wrapper
from ..torch_private.reducer_counts import counts_passes, noted_passes


def inside(model: nn.Module) -> nn.Module:
    """The model that DistributedDataParallel wraps; any other module as it is."""
    if isinstance(model, DistributedDataParallel):
        wrapped: nn.Module = model.module
        return wrapped
    return model


def refuse_wrapped(model: nn.Module, *, in_place: bool) -> None:
    """Refuse wrappers whose own work would be run with every block, or around every op.

    Raises
    ------
    UnsupportedError
        `model` is one, or contains one; in place, DistributedDataParallel may be the outermost.
    """
    for module in model.modules():
        name = type(module).__name__
        if name == "FullyShardedDataParallel":
            raise UnsupportedError(
                f"{name} keeps parameters in flat tensors of its own, of which no plan is made",
                hint="shard with torch.distributed.fsdp.fully_shard (FSDP2)",
            )
        if not isinstance(module, DistributedDataParallel):
            continue
        if in_place and module is model:
            _refuse_counting(module)
            continue
        raise UnsupportedError(
            f"{name} averages gradients around the step that is to be planned",
            hint="wrap what is planned: "
            f"{name}(schedsim.rematerialize(model.module, ...)), or in_place=True",
        )


def _refuse_counting(wrapper: Any) -> None:
    if counts_passes(wrapper):
        raise UnsupportedError(
            f"{type(wrapper).__name__}(static_graph=True) counts all backward passes before its "
            "first step, those of planning as well, and would average no later step",
            hint="give the budget first: schedsim.rematerialize(model, ..., in_place=True), then "
            f"{type(wrapper).__name__}(model, static_graph=True)",
        )


def wrapper_of(module: nn.Module) -> Any:
    """The DistributedDataParallel around `module` whose step runs now; ``None`` without one."""
    wrapper: Any = active_wrapper()
    return wrapper if getattr(wrapper, "module", None) is module else None


def bucket_bytes() -> int | None:
    """Bytes of gradients that the wrapper whose forward runs now averages at a time.

    ``None`` outside of a wrapper, and where this step averages nothing.
    """
    wrapper = active_wrapper()
    if wrapper is None or not wrapper.require_backward_grad_sync:
        return None
    return int(wrapper.bucket_bytes_cap)


def is_averaged(module: nn.Module) -> bool:
    """Whether a wrapper around `module` averages the gradients of the step that runs now."""
    wrapper = wrapper_of(module)
    return wrapper is not None and bool(wrapper.require_backward_grad_sync)


def why_not_compared(module: nn.Module) -> str | None:
    """Why no backward pass may run now beside the one of the step; ``None`` where it may."""
    wrapper = wrapper_of(module)
    if wrapper is None or not counts_passes(wrapper):
        return None
    return (
        f"{type(wrapper).__name__}(static_graph=True) counts the backward passes of its first step"
    )


@contextmanager
def refusing_passes(module: nn.Module) -> Iterator[None]:
    """Raise after planning whose backward passes the wrapper around `module` has counted.

    Raises
    ------
    UnsupportedError
        The wrapper would average no later step.
    """
    why = why_not_compared(module)
    if why is None:
        yield
        return
    with noted_passes(wrapper_of(module)) as reached:
        yield
    if reached:
        raise UnsupportedError(
            f"{why}, and planning has just run some: it would average no later step",
            hint="wrap the model anew, once it has a plan for this step: module.prepare(...) plans "
            "for other inputs, and keep_gradients=True for no_sync; or leave static_graph=True out",
        )


def refuse_hidden_parameters(module: nn.Module) -> None:
    """Refuse a wrapper that looks for parameters in the graph of a step by blocks.

    Raises
    ------
    UnsupportedError
        It would find none, and average gradients that are not there yet.
    """
    wrapper = wrapper_of(module)
    if wrapper is not None and wrapper.find_unused_parameters and not wrapper.static_graph:
        raise UnsupportedError(
            f"{type(wrapper).__name__}(find_unused_parameters=True) looks for parameters in the "
            "graph of the loss, where a step by blocks shows none",
            hint="static_graph=True in its place, where all steps use the same parameters; or "
            "level='op', or in_place=True",
        )
