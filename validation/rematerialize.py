"""One call from a model and a budget to a training loop that fits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.files.document import load
from schedsim.plans.plan import Plan
from schedsim.plans.setting import refuse_levels

from .capture.skeleton import refuse_foreign
from .drop_in.drop_in_options import DropInOptions
from .drop_in.in_place import in_place, session_in
from .environment import resolve_device
from .ranks import ALONE, Ranks, ranks_of
from .ranks.wrappers import inside, refuse_wrapped
from .rematerialized import Rematerialized
from .torch_private.pytrees import tree_map_only
from .user_warnings import warn_user
from .ways.choices import price
from .ways.way import Way
from .whole_step.belonging import captured_for
from .whole_step.captured_step import CapturedStep
from .whole_step.step_capture import capture_step
from .whole_step.step_inputs import check_inputs_in_place, check_step_inputs
from .whole_step.step_planning import resolved_budget
from .whole_step.step_settings import Settings
from .whole_step.varying_steps import are_for_many_sizes


@dataclass(frozen=True)
class FurtherOptions:
    """Keywords of `rematerialize` that few calls need; its docstring says what each means."""

    device: str | None = None
    planner: str = "auto"
    time_limit_s: float | None = None
    shapes: str = "plan"
    max_shapes: int = 8
    keep_gradients: bool = False
    extra_bytes: int = 0
    costs: str = "measured"
    host_bytes: int | str | None = None
    largest: Mapping[int, int] = field(default_factory=dict)
    in_place: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> tuple[FurtherOptions, dict[str, Any]]:
        """Those among `given`, and what is left: options of the planner."""
        own = {one.name for one in fields(cls)}
        rest = {name: value for name, value in given.items() if name not in own}
        return cls(**{name: value for name, value in given.items() if name in own}), rest


def rematerialize(
    model: nn.Module,
    inputs: Any,
    budget: int | str,
    loss: Callable[..., Tensor] | None = None,
    *,
    optimizer: Any = None,
    level: str = "auto",
    chunk: Any = None,
    accumulate: int | str | None = None,
    offload: Any = None,
    check: str | int = "plan",
    compile: bool = False,
    **options: Any,
) -> Any:
    """`model` as a module that gives the loss of a step and trains within `budget`.

    With ``in_place=True`` it is the model itself that is returned: its class, outputs, state_dict
    and hooks stay, and the loop computes the loss of its outputs, whose memory is measured in the
    first step and counted.

    Parameters
    ----------
    model
        Is put in training mode, except in place, where only a sharded one is; its parameters are
        shared, not copied.
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
    level
        ``"op"``, ``"block"``, or ``"auto"``: op by op where the model can be captured, else by
        block, with a `BlockLevelWarning`.
    chunk
        Compute the language-model head with its cross entropy, and feed-forward layers, over parts
        of the tokens: ``{"head": 8, "mlp": 4}``, ``"auto"`` for where it is quickest, or ``None``.
        Gradients are then those of the model within rounding.
    accumulate
        Number of micro-batches of a step; ``"auto"`` for the quickest within the budget.
        ``module(x, target)`` then runs forward and backward of all of them, and gives the loss of
        the whole batch, whose ``backward()`` hands the gradients over: the loop stays as it is.
    offload
        Copy what blocks keep to host memory and back beside the computation, where the plan says:
        a link, ``"pcie4"`` or ``"25GB/s"`` or a pair of these, or ``True`` for what is measured
        here. Takes the block level.
    check
        ``"plan"``: the planned step is compared with the plain one when it is made, at the price
        of two steps; what differs is planned at the next level, or refused. A number N: every N-th
        step too. ``"never"``.
    **options
        Options of the planner, and any of these keywords, with their defaults:

        ``device=None``
            Where to move model and inputs first; ``None`` leaves them.
        ``planner="auto"``, ``effort=None``, ``time_limit_s=None``
            As of `schedsim.plan`. Without both, ``auto`` spends 2 units of work, and one more for
            each 500 ops, of graphs an eighth of that where it leaves a gap of at most 0.1 %: 0.3
            to 1.5 seconds of two cores at 500 ops. With seconds alone, the plan depends on what
            else the machine does.
        ``shapes="plan"``, ``max_shapes=8``
            For inputs of another shape, type or mode: ``"plan"`` anew, within the same bytes, the
            last `max_shapes` plans being kept; or ``"raise"``. Where more than two shapes of a step
            planned op by op have come, one plan serves all further ones.
        ``keep_gradients=False``
            Count gradients as resident from before the step: for accumulation over several steps,
            or ``zero_grad(set_to_none=False)``. Those of sharded parameters always are.
        ``extra_bytes=0``
            Whatever else is resident, as an averaged copy. Buckets of DistributedDataParallel are
            counted without: the first step inside of it plans with them.
        ``costs="measured"``
            ``"measured"``: the plan of least time here. ``"operations"``: of the fewest
            floating-point operations run again, at the op level; its overhead then is a share of
            these.
        ``host_bytes=None``
            The host memory that `offload` may take, pinned; by default without a limit.
        ``largest={}``
            Dimension of the inputs -> the largest size that it will have: ``{1: 2048}``. All is
            traced and planned at once, for that size: other sizes of steps op by op then take
            milliseconds when they come. A share as `budget` is one of that size's peak.
        ``in_place=False``
            The model itself is changed and returned. Goes with `optimizer`, ``device``,
            ``planner``, ``time_limit_s``, ``extra_bytes``, ``effort``, ``largest`` and `check`
            alone; `drop_in_report` says what was planned.

    Returns
    -------
    Rematerialized
        With `plan`, `report()` and `level`; the model itself with ``in_place=True``.

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
    more, options = FurtherOptions.of(options)
    if isinstance(model, nn.Module):  # before its inputs are looked at any further
        refuse_foreign(model, inputs, parts_may_be_scripted=more.in_place)
        refuse_wrapped(model, in_place=more.in_place)
    if more.in_place:
        refused = {"loss": loss, "chunk": chunk, "accumulate": accumulate, "offload": offload}
        _refuse_in_place(more, refused, level)
        own = {"optimizer": optimizer, "extra_bytes": more.extra_bytes, "planner": more.planner}
        own |= {"time_limit_s": more.time_limit_s, "compile": compile, "check": check}
        own |= {"largest": more.largest}

        def planned() -> nn.Module:
            found = DropInOptions.read({"budget": budget, **own, **options})
            return in_place(model, *checked, found)

        def read() -> tuple[tuple[Any, ...], dict[str, Any]]:
            arguments, keywords = _unpacked(model, inputs, more.device, in_place=True)
            check_inputs_in_place(model, arguments, keywords)
            return arguments, keywords

        ranks = _ranks_of(model)
        ranks.awaited("rematerialize")
        checked = ranks.together("read the arguments", read)
        return ranks.together("plan", planned, runs_model=True)
    ranks = _ranks_of(model)
    ranks.awaited("rematerialize")

    def made() -> tuple[Rematerialized, Any, Any]:
        settings = Settings(
            budget=budget,
            loss=loss,
            optimizer=optimizer,
            level=level,
            planner=more.planner,
            time_limit_s=more.time_limit_s,
            keep_gradients=more.keep_gradients,
            extra_bytes=more.extra_bytes,
            costs=more.costs,
            options=options,
            chunk=chunk,
            accumulate=accumulate,
            offload=offload,
            host_bytes=more.host_bytes,
            ranks=ranks,
            check=check,
            compile=compile,
            largest=more.largest,
        )
        if more.largest and (more.shapes != "plan" or not are_for_many_sizes(settings)):
            raise SchedsimError(
                "largest= is for steps planned op by op: no plan by blocks, with chunks, "
                "micro-batches, copies, compile or several ranks, or of shapes='raise', is for "
                "many sizes",
                hint="leave it out, or in_place=True",
            )
        arguments, keywords = _unpacked(model, inputs, more.device)
        check_step_inputs(model, loss, arguments, keywords)
        module = Rematerialized(model, settings, shapes=more.shapes, max_shapes=more.max_shapes)
        return module, arguments, keywords

    module, arguments, keywords = ranks.together("read the arguments", made)
    if ranks.bound:
        kept = {"shapes": more.shapes, "max_shapes": more.max_shapes}
        alike = {**kept, **dict(module._plans.settings.alike())}
        ranks.same("compare arguments", alike)
    module.plan_for(*arguments, **keywords)
    return module


def _refuse_in_place(more: FurtherOptions, given: Mapping[str, Any], level: str) -> None:
    """Raise where a keyword is given that a model in place does not honour."""
    defaults = FurtherOptions()
    names = [name for name, value in given.items() if value is not None]
    names += ["level"] if level == "block" else []
    for name in ("shapes", "max_shapes", "keep_gradients", "costs", "host_bytes"):
        if getattr(more, name) != getattr(defaults, name):
            names.append(name)
    if names:
        told, them = " and ".join(f"{name}=" for name in names), "it" if len(names) == 1 else "them"
        verb = "is" if len(names) == 1 else "are"
        inside = f"leave {them} out, or in_place=True, for a step with its loss inside"
        raise SchedsimError(
            f"{told} {verb} not for a model in place",
            hint="the loop computes the loss itself" if names == ["loss"] else inside,
        )


def drop_in_report(model: nn.Module) -> str:
    """A report for people on the plans of a model that has a budget in place.

    Or of a model that ``fully_shard`` has sharded, with a budget by the backend of `torch.compile`.

    Raises
    ------
    SchedsimError
        The model has none.
    """
    return session_in(model).report()


def apply(
    model: nn.Module,
    plan: Plan | str | os.PathLike[str],
    inputs: Any,
    loss: Callable[..., Tensor] | None = None,
    *,
    device: str | None = None,
    shapes: str = "raise",
    max_shapes: int = 8,
    check: str | int = "plan",
) -> Rematerialized:
    """`model` trained by a saved plan, after checking that the plan is of this model.

    Parameters
    ----------
    plan
        A plan, or the path of its file.
    inputs, loss, device, shapes, max_shapes, check
        As of `rematerialize`; the shapes must be those that were planned for.

    Raises
    ------
    SchedsimError
        The plan is of another model or other inputs; the message names what differs.
    """
    ranks = _ranks_of(model)
    ranks.awaited("apply")

    def made() -> tuple[Rematerialized, CapturedStep, Plan, Any, Any]:
        found = plan if isinstance(plan, Plan) else load(plan)
        if not isinstance(found, Plan):
            raise SchedsimError(
                f"{plan} holds a {found.kind}, not a plan", hint="schedsim plan -o FILE"
            )
        refuse_levels(found.setting, found.schedule, "a real model")
        arguments, keywords = _unpacked(model, inputs, device)
        settings = Settings(budget=found.budget_bytes, loss=loss, ranks=ranks, check=check)
        # Ranks that are not bound to one plan may apply one each.
        own = replace(settings, ranks=settings.bound_ranks)
        captured, own = captured_for(found, model, arguments, keywords, own)
        settings = replace(own, ranks=ranks)
        module = Rematerialized(model, settings, shapes=shapes, max_shapes=max_shapes)
        return module, captured, found, arguments, keywords

    module, captured, found, arguments, keywords = ranks.together("check the plan", made)
    module.adopt(captured, found, arguments, keywords)
    return module


def ways(
    model: nn.Module,
    inputs: Any,
    budget: int | str,
    loss: Callable[..., Tensor] | None = None,
    *,
    optimizer: Any = None,
    level: str = "auto",
    planner: str = "auto",
    time_limit_s: float | None = None,
    extra_bytes: int = 0,
    offload: Any = None,
    host_bytes: int | str | None = None,
) -> list[Way]:
    """The ways to make a step fit, with their prices.

    Recomputation, chunks, micro-batches, and copies to host memory where a link is given.

    Nothing is switched on: `rematerialize` does what its `chunk`, `accumulate` and `offload`
    allow.

    Parameters
    ----------
    model, inputs, budget, loss, optimizer, level, planner, time_limit_s, extra_bytes
        As of `rematerialize`.
    offload, host_bytes
        The link and the host memory, as of `rematerialize`; such ways are of the block level.

    Returns
    -------
    list of Way
        With predicted time and peak of a step; those that do not fit say their least budget.

    Raises
    ------
    UnsupportedError
        The model can be captured at no level.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    >>> x, target = torch.randn(64, 8), torch.randn(64, 8)
    >>> found = ways(model, (x, target), "80%", nn.functional.mse_loss, level="block")
    >>> sorted({way.num_parts for way in found if not way.chunks})
    [1, 2, 4, 16, 32, 64]
    """
    ranks = _ranks_of(model)
    settings = Settings(
        budget=budget,
        loss=loss,
        optimizer=optimizer,
        level=level,
        planner=planner,
        time_limit_s=time_limit_s,
        extra_bytes=extra_bytes,
        offload=offload,
        host_bytes=host_bytes,
        ranks=ranks if ranks.bound else ALONE,
    )
    arguments, keywords = _unpacked(model, inputs, None)
    first = capture_step(model, arguments, keywords, replace(settings, offload=None))
    budget_bytes, _ = resolved_budget(settings, first, model, (arguments, keywords))
    return price(model, arguments, keywords, settings, budget_bytes, first)


def _ranks_of(model: Any) -> Ranks:
    """The ranks that plan `model` together; what is no model is refused later, with its message."""
    if not isinstance(model, nn.Module):
        return ALONE
    return ranks_of(inside(model))


def _unpacked(
    model: nn.Module, inputs: Any, device: str | None, in_place: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs, with the model in training mode where it shall be.

    In place it keeps the mode that it has.
    """
    if not isinstance(model, nn.Module):
        raise SchedsimError(
            f"the model is a {type(model).__name__}", hint="give a torch.nn.Module, not its class"
        )
    if isinstance(model, Rematerialized):
        raise SchedsimError("the model is rematerialized already", hint="call its replan(budget)")
    if next(model.parameters(), None) is None:
        raise UnsupportedError("the model has no parameters", hint="there is nothing to train")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = next((name for name, it in tensors if is_lazy(it)), None)
    if lazy is not None:
        raise SchedsimError(
            f"the model's {lazy} has no shape yet, as lazy modules have none before a forward",
            hint="call the model once on an input, without gradients",
        )
    if isinstance(inputs, DataLoader):
        raise SchedsimError(
            "inputs is a DataLoader, and not what a step is given", hint="next(iter(loader))"
        )
    if inputs is None:
        raise SchedsimError(
            "inputs is None, and not what a step is given",
            hint="a tuple of inputs, one tensor, or a mapping of keywords; () for no input",
        )
    if device is not None:
        where = resolve_device(device)
        model.to(where)
        inputs = tree_map_only(Tensor, lambda tensor: tensor.to(where), inputs)
    if not model.training and not in_place:
        model.train()
        warn_user(
            f"{type(model).__name__} was in evaluation mode, as pretrained models come, and is put "
            "in training mode, in which its dropout and batch norms are others; put layers that "
            "shall stay as they were in evaluation mode before the call, and the model in training "
            "mode, or train in place: in_place=True keeps the mode",
        )
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
