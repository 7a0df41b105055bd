"""One call from a model and a budget to a training loop that fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from schedsim.errors import InvalidScheduleError, SchedsimError, UnsupportedError
from schedsim.files import load, workload_hash
from schedsim.offloading import refuse_copies
from schedsim.plans import Plan
from schedsim.simulator import simulate
from schedsim.units import format_bytes

from .environment import check_device
from .rematerialized import Rematerialized
from .step_planning import CapturedStep, Settings, capture_step


def rematerialize(
    model: nn.Module,
    inputs: Any,
    budget: int | str,
    loss: Callable[..., Tensor] | None = None,
    *,
    optimizer: Any = None,
    device: str | None = None,
    level: str = "auto",
    planner: str = "auto",
    time_limit_s: float = 10.0,
    shapes: str = "plan",
    max_shapes: int = 8,
    keep_gradients: bool = False,
    extra_bytes: int = 0,
    **options: Any,
) -> Rematerialized:
    """`model` as a module that gives the loss of a step and trains within `budget`.

    Parameters
    ----------
    model
        Is put in training mode; its parameters are shared, not copied.
    inputs
        Of one step: a tuple, one tensor, or a mapping of keywords. What the loss takes besides the
        output comes last: ``(x, target)`` for ``loss=cross_entropy``.
    budget
        Of everything resident and the step: bytes, ``"24GiB"``, ``"80%"`` of the store-all peak, or
        ``"cuda:0"`` for what is free there, with headroom. It becomes bytes once, by `inputs`.
    loss
        Makes a scalar of the output; ``None`` for a model whose output is its loss, or has it.
    optimizer
        Whose state is counted: a torch optimizer (measured, or foreseen before its first step),
        ``"sgd"``, ``"sgd-momentum"``, ``"adam"``, ``"adamw"``, or bytes. ``None`` counts nothing.
    device
        Where to move model and inputs first; ``None`` leaves them.
    level
        ``"op"``, ``"block"``, or ``"auto"``: op by op where the model can be captured, else by
        block, with a `BlockLevelWarning`.
    planner, time_limit_s, **options
        As of `schedsim.plan`; seconds bound the search of ``auto``.
    shapes
        For inputs of another shape, type or mode: ``"plan"`` anew, within the same bytes, the last
        `max_shapes` plans being kept; or ``"raise"``.
    keep_gradients
        Count gradients as resident from before the step: for accumulation over several steps, or
        ``zero_grad(set_to_none=False)``. The block level always does.
    extra_bytes
        Whatever else is resident: buckets of DistributedDataParallel, an averaged copy.

    Returns
    -------
    Rematerialized
        With `plan`, `report()` and `level`.

    Raises
    ------
    InfeasibleBudgetError
        It names the least budget found feasible, and the op that sets it.
    UnsupportedError
        The model can be captured at no level.
    SchedsimError
        An argument is not understood.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(6)))
    >>> x, target = torch.randn(256, 8), torch.randn(256, 8)
    >>> module = rematerialize(model, (x, target), "80%", nn.functional.mse_loss)
    >>> module(x, target).backward()
    >>> module.plan.peak_bytes <= module.budget_bytes
    True
    """
    settings = Settings(
        budget=budget,
        loss=loss,
        optimizer=optimizer,
        level=level,
        planner=planner,
        time_limit_s=time_limit_s,
        keep_gradients=keep_gradients,
        extra_bytes=extra_bytes,
        options=options,
    )
    arguments, keywords = _unpacked(model, inputs, device)
    module = Rematerialized(model, settings, shapes=shapes, max_shapes=max_shapes)
    module.prepare(*arguments, **keywords)
    return module


def apply(
    model: nn.Module,
    plan: Plan | str | os.PathLike[str],
    inputs: Any,
    loss: Callable[..., Tensor] | None = None,
    *,
    device: str | None = None,
    shapes: str = "raise",
    max_shapes: int = 8,
) -> Rematerialized:
    """`model` trained by a saved plan, after checking that the plan is of this model.

    Parameters
    ----------
    plan
        A plan, or the path of its file.
    inputs, loss, device, shapes, max_shapes
        As of `rematerialize`; the shapes must be those that were planned for.

    Raises
    ------
    SchedsimError
        The plan is of another model or other inputs; the message names what differs.
    """
    found = plan if isinstance(plan, Plan) else load(plan)
    if not isinstance(found, Plan):
        raise SchedsimError(
            f"{plan} holds a {found.kind}, not a plan", hint="schedsim plan -o FILE"
        )
    if found.schedule is None:
        raise SchedsimError("the plan is infeasible: it has no schedule", hint="plan again")
    refuse_copies(found, "a real model")
    names = set(found.schedule.names)
    guess = "block" if {"F0", "B0"} & names else "op"
    level = str(found.options.get("level", guess))
    settings = Settings(
        budget=found.budget_bytes,
        loss=loss,
        level=level,
        extra_bytes=int(found.options.get("added_bytes", 0)),
    )
    arguments, keywords = _unpacked(model, inputs, device)
    captured = capture_step(model, arguments, keywords, settings)
    _check_belongs(found, captured)
    module = Rematerialized(model, settings, shapes=shapes, max_shapes=max_shapes)
    module.adopt(captured, found, arguments, keywords)
    return module


def _unpacked(
    model: nn.Module, inputs: Any, device: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs, with the model in training mode where it shall be."""
    if not isinstance(model, nn.Module):
        raise SchedsimError(
            f"the model is a {type(model).__name__}", hint="give a torch.nn.Module, not its class"
        )
    if isinstance(model, Rematerialized):
        raise SchedsimError("the model is rematerialized already", hint="call its replan(budget)")
    if next(model.parameters(), None) is None:
        raise UnsupportedError("the model has no parameters", hint="there is nothing to train")
    if device is not None:
        where = check_device(device)
        model.to(where)
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to(where), inputs)
    if not model.training:
        model.train()
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _check_belongs(plan: Plan, captured: CapturedStep) -> None:
    """Refuse a plan of another step; what the machine alone changes is allowed where it fits."""
    workload = captured.workload
    same = plan.workload.content_hash == workload_hash(workload)
    same = same or plan.options.get("structure") == captured.structure_hash
    differs = _differences(plan, captured)
    if not same or differs:
        what = "; ".join(differs) or "its tensors have other sizes"
        raise SchedsimError(
            f"the plan of {plan.workload.name} is not of this step of {workload.name}: {what}",
            hint="apply it to the model, inputs and loss that it was made for, or plan again",
        )


def _differences(plan: Plan, captured: CapturedStep) -> list[str]:
    assert plan.schedule is not None
    workload = captured.workload
    mine, its = set(workload.op_names), set(plan.schedule.names)
    found = []
    if extra := [name for name in plan.schedule.names if name not in mine]:
        found.append(f"the plan runs {extra[0]!r}, which the model has not")
    if missing := [name for name in workload.op_names if name not in its]:
        found.append(f"the model has {missing[0]!r}, which the plan does not run")
    if plan.static_bytes != workload.static_bytes:
        found.append(
            f"static bytes are {format_bytes(workload.static_bytes)}, "
            f"in the plan {format_bytes(plan.static_bytes)}"
        )
    if found:
        return found
    try:
        peak = simulate(workload, plan.schedule).peak_bytes
    except InvalidScheduleError as error:
        return [str(error)]
    if peak > plan.budget_bytes:
        found.append(
            f"its schedule takes {format_bytes(peak)} here, over its budget of "
            f"{format_bytes(plan.budget_bytes)}"
        )
    return found
