"""From a model and the inputs of a step to a schedule of that step, and a module that runs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.api import try_plan
from schedsim.chain import Chain
from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.files import workload_hash
from schedsim.graph import Graph
from schedsim.plans import Plan
from schedsim.schedule import Schedule
from schedsim.simulator import simulate
from schedsim.units import format_bytes

from .block_level import capture_chain
from .block_level.module import loss_of
from .block_level.replay import untouched
from .block_times import BlockTimes
from .capture import CapturedGraph, capture
from .costs import counted_costs, measured_costs
from .resident_state import ResidentState, resident_state
from .step_budget import budget_in_bytes

LEVELS = ("auto", "op", "block")
COSTS = ("measured", "operations")
UNLIMITED_BYTES = 2**53 - 1
_STATE_TRIES = 4


class BlockLevelWarning(UserWarning):
    """A model cannot be planned op by op, and is planned block by block."""


@dataclass(frozen=True)
class Settings:
    """How steps of a model are planned; the arguments of `rematerialize`."""

    budget: int | str
    loss: Callable[..., Tensor] | None = None
    optimizer: Any = None
    level: str = "auto"
    planner: str = "auto"
    time_limit_s: float = 10.0
    keep_gradients: bool = False
    extra_bytes: int = 0
    costs: str = "measured"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SchedsimError(f"level={self.level!r} is unknown", hint="auto, op or block")
        if self.costs not in COSTS:
            raise SchedsimError(f"costs={self.costs!r} is unknown", hint=" or ".join(COSTS))
        if self.costs != "measured" and self.level == "block":
            raise SchedsimError(
                f"costs={self.costs!r} at the block level", hint="blocks have measured times alone"
            )


@dataclass(frozen=True)
class CapturedStep:
    """A step of a model as a workload, everything resident counted.

    Attributes
    ----------
    level
        ``"op"`` or ``"block"``.
    make_module
        From a schedule to the module that runs it.
    most_states_bytes
        Of generator states for repeated dropout, where these are in the memory that the plan is
        for: the host's. The graph does not count them.
    output_class
        Of a model that gives its own loss in an output object: that object's class.
    """

    level: str
    workload: Chain | Graph
    state: ResidentState
    make_module: Callable[[Schedule], nn.Module]
    notes: tuple[str, ...]
    output_class: type | None
    most_states_bytes: int = 0

    @property
    def added_bytes(self) -> int:
        """Static bytes that are not from the model alone."""
        return self.workload.static_bytes - self._own_static_bytes

    _own_static_bytes: int = 0

    @property
    def structure_hash(self) -> str:
        """Content hash without what depends on the machine, the optimizer or the name."""
        return workload_hash(bare(self.workload, self._own_static_bytes))


@dataclass(frozen=True)
class PlannedStep:
    """A captured step, its plan, and the module that runs it."""

    captured: CapturedStep
    plan: Plan
    module: nn.Module
    store_all_bytes: int

    def shaped(self, loss: Tensor) -> Any:
        """`loss` in the form in which the model gives it."""
        kind = self.captured.output_class
        return loss if kind is None else kind(loss=loss)


def bare(workload: Chain | Graph, static_bytes: int) -> Chain | Graph:
    """`workload` without times and workspaces."""
    if isinstance(workload, Chain):
        none = {"forward_s": 0.0, "backward_s": 0.0}
        none |= {"forward_workspace_bytes": 0, "backward_workspace_bytes": 0}
        stages = tuple(replace(stage, **none) for stage in workload.stages)  # type: ignore[arg-type]
        bare_chain = replace(workload, stages=stages, static_bytes=static_bytes, loss_s=0.0)
        if hasattr(bare_chain, "loss_workspace_bytes"):
            bare_chain = replace(bare_chain, loss_workspace_bytes=0)
        return bare_chain
    ops = tuple(replace(op, time_s=0.0, workspace_bytes=0) for op in workload.ops)
    return replace(workload, ops=ops, static_bytes=static_bytes)


class _OwnLoss:
    """The loss that a model gives itself; notes the class of the output that it comes in."""

    def __init__(self) -> None:
        self.output_class: type | None = None

    def __call__(self, output: Any) -> Tensor:
        self.note(output)
        return loss_of(output)

    def note(self, output: Any) -> None:
        """Remember the class of `output`, unless it is the loss."""
        self.output_class = None if isinstance(output, Tensor) else type(output)


def capture_step(
    model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any], settings: Settings
) -> CapturedStep:
    """One training step of `model`, op by op where that works, else by blocks.

    Raises
    ------
    UnsupportedError
        Neither works, or not the level asked for.
    """
    state = resident_state(model, settings.optimizer, settings.extra_bytes)
    added = state.optimizer_bytes + state.extra_bytes
    with _kept_random_numbers(model):
        if settings.level == "block":
            return _by_block(model, inputs, keywords, settings, state, added, ())
        try:
            return _by_op(model, inputs, keywords, settings, state, added)
        except (SchedsimError, RuntimeError, NotImplementedError) as error:
            if settings.level == "op":
                raise
            why = " ".join(str(error).split())[:300]
        note = f"planned by blocks, as it cannot be captured op by op: {why}"
        warnings.warn(f"{type(model).__name__} is {note}", BlockLevelWarning, stacklevel=4)
        return _by_block(model, inputs, keywords, settings, state, added, (note,))


def _kept_random_numbers(model: nn.Module) -> Any:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    return torch.random.fork_rng(sorted(devices, key=str))


def _by_op(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    state: ResidentState,
    added: int,
) -> CapturedStep:
    own = _OwnLoss()
    loss = settings.loss or own
    captured: CapturedGraph = capture(model, inputs, loss, kwargs=keywords)
    if not captured.runnable:
        raise UnsupportedError(
            "the model lies on the meta device, where no step can run", hint="load it first"
        )
    if settings.loss is None and captured.front == "dynamo":
        # What traced code notes is not left behind: only a run tells the class of the output.
        with torch.no_grad(), untouched(model):
            own.note(model(*inputs, **keywords))
    costs = measured_costs(captured, next(model.parameters()).device)
    if settings.costs == "operations":
        costs = counted_costs(captured, costs)
    captured = captured.with_costs(costs)
    static = captured.graph.static_bytes
    if settings.keep_gradients:
        added += state.gradients_bytes
    captured = captured.with_state(added)
    return CapturedStep(
        "op",
        captured.graph,
        state,
        captured.module,
        captured.notes,
        own.output_class,
        most_states_bytes=_most_states_bytes(captured),
        _own_static_bytes=static,
    )


def _by_block(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    state: ResidentState,
    added: int,
    notes: tuple[str, ...],
) -> CapturedStep:
    own = _OwnLoss()
    handle = model.register_forward_hook(lambda _, __, output: own.note(output))
    times = BlockTimes(next(model.parameters()).device)
    try:
        captured = capture_chain(
            model,
            inputs,
            settings.loss,
            kwargs=keywords,
            rounds=3,
            known_times=times.find,
        )
    finally:
        handle.remove()
    times.keep(captured.workload)
    static = captured.workload.static_bytes
    workload = replace(captured.workload, static_bytes=static + added)
    # The inputs of the capture are not needed to run another step.
    slim = replace(captured, workload=workload, inputs=(), keywords={})
    output_class = own.output_class if settings.loss is None else None
    return CapturedStep(
        "block",
        workload,
        state,
        slim.module,
        (*notes, *captured.notes),
        output_class,
        _own_static_bytes=static,
    )


def plan_step(
    captured: CapturedStep, budget_bytes: int, store_all_bytes: int, settings: Settings
) -> PlannedStep:
    """The plan of a captured step within `budget_bytes`, and its module.

    Raises
    ------
    InfeasibleBudgetError
        It names the least budget found feasible, and the op that sets it.
    """
    options = dict(settings.options)
    if settings.planner in ("auto", "local_search"):
        options.setdefault("time_limit_s", settings.time_limit_s)
    plan, module = _planned(captured, budget_bytes, 0, settings.planner, options)
    states_bytes = _states_bytes(captured, module)
    spare_bytes = 0
    for _ in range(_STATE_TRIES):
        if plan.peak_bytes is None or plan.peak_bytes + states_bytes <= budget_bytes:
            break
        # The graph's budget is what they leave; twice as many the next time, as another plan
        # may repeat more.
        spare_bytes = min(max(states_bytes, 2 * spare_bytes), captured.most_states_bytes)
        plan, module = _planned(captured, budget_bytes, spare_bytes, settings.planner, options)
        states_bytes = _states_bytes(captured, module)
    plan = replace(
        plan,
        options={
            **plan.options,
            "level": captured.level,
            "structure": captured.structure_hash,
            "added_bytes": captured.added_bytes,
            **({"generator_states_bytes": states_bytes} if states_bytes else {}),
        },
    )
    return PlannedStep(captured, plan, module, store_all_bytes)


def _planned(
    captured: CapturedStep,
    budget_bytes: int,
    spare_bytes: int,
    planner: str,
    options: Mapping[str, Any],
) -> tuple[Plan, nn.Module]:
    """The plan within all but `spare_bytes` of the budget, and its module."""
    plan = try_plan(captured.workload, budget_bytes - spare_bytes, planner, **options)
    if plan.schedule is None:
        proven = int(plan.options.get("least_memory_bytes", 0))
        if proven > budget_bytes:
            # One op alone needs more, so that nothing was searched for: do it for the message.
            near = try_plan(captured.workload, proven, planner, **options)
            if near.min_feasible_bytes is not None:
                plan = replace(
                    plan,
                    min_feasible_bytes=near.min_feasible_bytes,
                    binding_op=near.binding_op,
                )
        least = plan.min_feasible_bytes
        if least is not None:
            least += captured.most_states_bytes
            plan = replace(plan, min_feasible_bytes=least)
        where = f", set by {plan.binding_op!r}" if plan.binding_op else ""
        raise InfeasibleBudgetError(
            f"a step of {captured.workload.name} does not fit {format_bytes(budget_bytes)} at the "
            f"{captured.level} level"
            + (f": the least budget found is {format_bytes(least)}{where}" if least else ""),
            plan=plan,
            hint=f"budget={least}, fewer samples a step, or a smaller optimizer state"
            if least
            else "give more, or fewer samples a step",
        )
    return plan, captured.make_module(plan.schedule)


def _states_bytes(captured: CapturedStep, module: nn.Module) -> int:
    """The most bytes of generator states kept by `module`, where they count."""
    return int(getattr(module, "replay_bytes", 0)) if captured.most_states_bytes else 0


def _most_states_bytes(captured: CapturedGraph) -> int:
    if captured.backend != "cpu":
        return 0
    return sum(call.random for call in captured.program.calls) * torch.get_rng_state().numel()


def store_all_peak(captured: CapturedStep) -> int:
    """Bytes of the step that recomputes nothing."""
    workload = captured.workload
    return simulate(workload, Schedule.store_all(workload)).peak_bytes


def resolved_budget(
    settings: Settings, captured: CapturedStep, model: nn.Module, inputs: Any
) -> tuple[int, int]:
    """(budget, store-all peak) in bytes."""
    most = store_all_peak(captured)
    resident: list[Any] = [*model.parameters(), *model.buffers()]
    resident += [p.grad for p in model.parameters() if p.grad is not None]
    resident += [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if _is_tensor(leaf)]
    if isinstance(settings.optimizer, torch.optim.Optimizer):
        leaves = torch.utils._pytree.tree_leaves(dict(settings.optimizer.state))
        resident += [leaf for leaf in leaves if _is_tensor(leaf)]
    return budget_in_bytes(settings.budget, most, resident), most


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)
