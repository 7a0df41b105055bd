"""A model that stays itself, and trains within a budget: rematerialize(..., in_place=True)."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..block_level.repeated_forward import untouched
from ..capture.capture import record_step
from ..capture.recurrent import whole_recurrence
from ..guards.differential import Both
from ..guards.plan_variants import PlainStepWarning, RoundingWarning
from ..step_check import no_room_for
from ..torch_private.dynamo_settings import (
    dynamo_settings,
    graph_breaks,
    last_graph_break,
    without_logging,
)
from ..torch_private.module_tables import call_as_itself, call_instead, replacement_of
from ..torch_private.pytrees import tree_leaves
from .backend import compiled_part
from .drop_in_options import DropInOptions
from .session import Session

_sessions: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()


def in_place(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    options: DropInOptions,
    check: str | int = "plan",
) -> nn.Module:
    """`model` itself, whose training steps stay within the budget from now on.

    Parameters
    ----------
    inputs, keywords
        Of one call, to trace and to plan a first step with; nothing of it is left behind.
    check
        ``"plan"``: a step of a made-up loss is compared with the plain one; ``"never"``.

    Raises
    ------
    InfeasibleBudgetError
        The forward and backward of `model` alone do not fit.
    UnsupportedError
        The step by its schedules is not the plain one.
    SchedsimError
        It is within a budget already.
    """
    if model in _sessions:
        raise SchedsimError("the model has a budget already", hint="schedsim.restore(model)")
    if check not in ("plan", "never"):
        raise SchedsimError(
            f"check={check!r} is not for a model in place", hint="'plan' or 'never'"
        )
    session = Session(replace(options, check=str(check)))
    call = _BudgetedCall(model, session)
    # The call of a module looks here first; copies and pickles of the module leave it behind.
    call_instead(model, call)
    _sessions[model] = session
    session.is_rehearsing = True
    try:
        with untouched(model):
            _rehearsed(model, inputs, keywords)
        if check == "plan" and session.parts:
            session.check_note = _compared(model, session, inputs, keywords)
    except BaseException:
        restore(model)
        raise
    session.is_rehearsing = False
    return model


def _rehearsed(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Trace a forward and plan it; where that fails and the plain one does not, say so."""
    try:
        model(*inputs, **keywords)
    except SchedsimError:
        raise
    except Exception as error:  # of Dynamo, of a kernel, of the model itself
        call_as_itself(model)(*inputs, **keywords)
        text = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"a forward of {type(model).__name__} by its schedules fails: "
            f"{type(error).__name__}: {text}",
            hint="nothing was changed; train without, or give the loss: loss=",
        ) from error


def made_up_loss(output: Any) -> torch.Tensor:
    """A scalar to which every entry of `output` that can be differentiated matters otherwise."""
    own = getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad and not own.ndim:
        return own
    leaves = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not leaves:
        raise UnsupportedError(
            "no output of the model needs a gradient",
            hint="is some parameter left with requires_grad?",
        )
    total: torch.Tensor = torch.zeros((), device=leaves[0].device)
    for leaf in leaves:
        flat = leaf.reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        weights = torch.cos(torch.arange(flat.numel(), device=flat.device))
        total = total + (flat * weights.to(flat.dtype)).sum().float() / flat.numel()
    return total


def _compared(
    model: nn.Module, session: Session, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str:
    """A line on how a step by the schedules compares with the plain one."""
    device = torch.device(session.parts[0].device)
    why = no_room_for(session.store_all_bytes, device, 0)
    if why is not None:
        return f"not compared with the plain step: {why}"
    # Dynamo traces a function no more once it was called in a mode that looks at every op.
    call = replacement_of(model)
    call_instead(model, None)
    try:
        with untouched(model):
            recorded = record_step(model, made_up_loss, inputs, keywords)
    finally:
        call_instead(model, call)

    def plain(*inputs: Any, **keywords: Any) -> torch.Tensor:
        return made_up_loss(call_as_itself(model)(*inputs, **keywords))

    def planned(*inputs: Any, **keywords: Any) -> torch.Tensor:
        return made_up_loss(model(*inputs, **keywords))

    rounded = session.options.compile
    both = Both(model, made_up_loss, recorded)
    difference = both.difference(plain, planned, inputs, keywords, rounded=rounded)
    name = type(model).__name__
    if difference is None:
        within = "within rounding" if rounded else "to the bit"
        return f"outputs, gradients, buffers and generators are the plain step's {within}"
    if not difference.rounding:
        raise UnsupportedError(
            f"the step of {name} by its schedules is not the plain one: {difference}",
            hint="nothing was changed; train without, or give the loss: loss=",
        )
    line = f"the step of {name} is the plain one within rounding: {difference}"
    warnings.warn(line, RoundingWarning, stacklevel=4)
    return f"not the plain step to the bit: {difference}"


def restore(model: nn.Module) -> nn.Module:
    """`model` without a budget, as it was before `rematerialize(..., in_place=True)`."""
    _sessions.pop(model, None)
    call_instead(model, None)
    return model


def session_in(model: nn.Module) -> Session:
    """What was planned for a model with a budget.

    Raises
    ------
    SchedsimError
        It has none.
    """
    if model not in _sessions:
        raise SchedsimError(
            "the model has no budget of its own",
            hint="schedsim.rematerialize(model, inputs, budget, in_place=True)",
        )
    return _sessions[model]


class _BudgetedCall:
    """The call of a model: by its schedules where it trains, else as it is."""

    def __init__(self, model: nn.Module, session: Session) -> None:
        self._model: Any = model
        self._session = session
        self._gave_up = False

        run = _inlined(call_as_itself(model))

        def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            return compiled_part(session, graph_module, inputs)

        self._run: Any = torch.compile(run, backend=backend, dynamic=session.options.dynamic)
        self._has_whole_recurrence = _has_recurrence_on_cpu(model)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        model = self._model
        if not model.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return call_as_itself(model)(*inputs, **keywords)
        before, breaks = self._session.num_forwards, graph_breaks()
        with ExitStack() as stack:
            # A hook that is registered later is part of the step.
            settings: dict[str, Any] = {"skip_nnmodule_hook_guards": False}
            # What a library says once (transformers, of the loss) is no reason to break a graph.
            # The plain step, which the first one is compared with, says it.
            settings |= without_logging(("warning_once", "info_once"))
            if self._has_whole_recurrence:
                settings["allow_rnn"] = True
                stack.enter_context(whole_recurrence())
            stack.enter_context(dynamo_settings(settings))
            found = self._run(*inputs, **keywords)
        if self._session.num_forwards == before and not self._gave_up:
            self._gave_up = True
            reason = last_graph_break(breaks)
            warnings.warn(
                f"a step of {type(model).__name__} runs as it is, not within the budget: "
                + (
                    f"Dynamo traces no part of it: {reason}"
                    if reason
                    else "Dynamo traces no part of it, or no more after too many retracings "
                    "(torch._dynamo.config.recompile_limit)"
                ),
                PlainStepWarning,
                stacklevel=2,
            )
        return found


def _has_recurrence_on_cpu(model: nn.Module) -> bool:
    """Whether Dynamo is to take recurrent layers as one op each, which it refuses otherwise."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    return bool(layers) and all(p.device.type == "cpu" for m in layers for p in m.parameters())


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a frame that is not torch's own: Dynamo steps over those."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        return function(*inputs, **keywords)

    # What Dynamo knows hangs on the code: each model has its own, or one is traced for another.
    run.__code__ = run.__code__.replace()
    return run
