"""Resident bytes besides activations: parameters, gradients, buffers, optimizer state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch
from torch import nn

from schedsim.errors import SchedsimError
from schedsim.units import format_bytes_short

from ..capture.optimizer_state import optimizer_bytes
from ..measure import storage_bytes
from ..measure.storage import local

# Not by `|`: the site is also built without torch, and torch's stand-in has no such operator.
Optimizer = Union[torch.optim.Optimizer, str, int, None]  # noqa: UP007


@dataclass(frozen=True)
class ResidentState:
    """Bytes that a step holds from before its start to after its end, and how they were counted.

    Attributes
    ----------
    parameters_bytes, buffers_bytes
        Bytes of all storages, each counted once.
    gradients_bytes
        Bytes of one gradient for each trained parameter.
    optimizer_bytes
        State of the optimizer; `optimizer_source` says where the number comes from.
    extra_bytes
        Bytes that the caller named: communication buckets, an averaged copy of the model.
    """

    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    optimizer_source: str
    extra_bytes: int


def resident_state(model: nn.Module, optimizer: Optimizer, extra_bytes: int = 0) -> ResidentState:
    """Count the bytes that `model` and `optimizer` hold.

    Parameters
    ----------
    optimizer
        A torch optimizer (its state is measured; before its first step, foreseen by a step on the
        meta device), ``"sgd"``, ``"sgd-momentum"``, ``"adam"``, ``"adamw"``, a number of bytes, or
        ``None`` to leave it out.

    Raises
    ------
    SchedsimError
        The optimizer is unknown, or a number is negative.
    """
    if extra_bytes < 0:
        raise SchedsimError(f"extra_bytes={extra_bytes} is negative", hint="give bytes")
    state_bytes, source = _optimizer(model, optimizer)
    return ResidentState(
        parameters_bytes=storage_bytes(list(model.parameters())),
        buffers_bytes=storage_bytes(list(model.buffers())),
        gradients_bytes=sum(
            local(p).numel() * p.element_size() for p in model.parameters() if p.requires_grad
        ),
        optimizer_bytes=state_bytes,
        optimizer_source=source,
        extra_bytes=extra_bytes,
    )


def counted_line(model: nn.Module, level: str) -> str:
    """Which model state a captured step contains, and which it does not, in words.

    The command line knows no optimizer, so that optimizer state is never in the numbers.
    """
    state = resident_state(model, "adamw")
    held = (
        f"parameters and buffers {format_bytes_short(state.parameters_bytes + state.buffers_bytes)}"
    )
    optimizer = format_bytes_short(state.optimizer_bytes)
    gradients = f"gradients {format_bytes_short(state.gradients_bytes)}"
    what = "backward" if level == "block" else "op"
    counted = f"{held} are counted, {gradients} from the {what} that makes them"
    return (
        f"model state: {counted}; NOT counted: optimizer state, {optimizer} "
        "for AdamW (take it off the budget; schedsim.rematerialize counts it: optimizer=)"
    )


def _optimizer(model: nn.Module, optimizer: Optimizer) -> tuple[int, str]:
    if optimizer is None:
        return 0, "not counted: pass optimizer="
    if isinstance(optimizer, torch.optim.Optimizer):
        name = type(optimizer).__name__
        if optimizer.state:
            return _measured(optimizer)
        return _foreseen(optimizer), f"foreseen by a step of {name} on the meta device"
    found = optimizer_bytes(optimizer, model)
    return found, "as given" if isinstance(optimizer, int) else f"of {optimizer}, by formula"


def _measured(optimizer: torch.optim.Optimizer) -> tuple[int, str]:
    """Bytes of the present state, and of what parameters that are trained only now will have."""
    found, says = storage_bytes(dict(optimizer.state)), f"measured, {type(optimizer).__name__}"
    later = {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter not in optimizer.state
    }
    if not later:
        return found, says
    try:
        return found + _foreseen(optimizer, later), f"{says}; foreseen for {len(later)} parameters"
    except SchedsimError:  # one of those whose whole state is that of the first parameter
        return found, says


def _foreseen(optimizer: torch.optim.Optimizer, only: set[int] | None = None) -> int:
    """Bytes of state after the first step, by an optimizer of the same class on the meta device.

    Parameters
    ----------
    only
        Ids of the parameters that take part; ``None`` for all.
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        parameters = []
        for parameter in group["params"]:
            if only is not None and id(parameter) not in only:
                continue
            bare = nn.Parameter(
                torch.empty(local(parameter).shape, dtype=parameter.dtype, device="meta"),
                requires_grad=parameter.requires_grad,
            )
            if parameter.requires_grad:
                bare.grad = torch.empty_like(bare)
            parameters.append(bare)
        # One kernel for all parameters, and captured graphs, need real devices.
        plain = {"foreach": False, "fused": False, "capturable": False}
        known = {key: value for key, value in plain.items() if key in group}
        if parameters:
            groups.append({**group, "params": parameters, **known})
    name = type(optimizer).__name__
    try:
        twin = type(optimizer)(groups)  # type: ignore[call-arg]
        twin.step()
    except Exception as error:  # an optimizer may need what a meta tensor lacks
        raise SchedsimError(
            f"the state of {name} cannot be foreseen: {type(error).__name__}: {error}",
            hint="take one step first, so that it can be measured, or pass optimizer=BYTES",
        ) from error
    return storage_bytes(dict(twin.state))
