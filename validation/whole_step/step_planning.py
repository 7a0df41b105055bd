"""The schedule of a captured step within a budget, and the module that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from schedsim.algorithms import get_planner
from torch import Tensor, nn

from schedsim.api import try_plan
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import InfeasibleBudgetError
from schedsim.plans.offloading import Offloading
from schedsim.plans.plan import Plan
from schedsim.plans.setting import StepChanges
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate
from schedsim.units import format_bytes

from ..block_level.scheduled_blocks import ScheduledBlocks
from ..block_level.transfers import measured_links
from ..compiled.any_order import back_in_the_trace, first_that_fits, is_better, orders
from ..guards.state_change import StateChange
from ..measure.meters import no_collection
from ..ranks import Ranks
from ..ranks.one_plan import planned_once
from ..torch_private.pytrees import tree_leaves
from ..ways.accumulate import AccumulatedStep
from ..ways.way import Way
from .captured_step import CapturedStep
from .step_budget import budget_in_bytes
from .step_settings import Settings

UNLIMITED_BYTES = 2**53 - 1
_EFFORT, _EFFORT_PER_OP = 2.0, 1 / 500
"""Units of work of a search, and additional units for each op, unless the caller gives them."""
_FIRST_SHARE, _SMALL_GAP = 1 / 8, 0.001
"""Share of that work with which a search begins, and the gap to the bound that is small enough."""
_STATE_TRIES = 4
_MUCH_REPEATED = 0.2
"""Share of a step's time that repeats take where smaller groups are tried: code is compiled."""


@dataclass(frozen=True)
class PlannedStep:
    """A captured step, its plan, and the module that runs it.

    Attributes
    ----------
    check_note
        How the planned step compared with the plain one, in words.
    measured_bytes
        Measured peak of a compiled step, resident bytes included; ``None`` for other steps.
    number
        Which plan of its model it is, counted from 1; the same on all ranks that run it.
    """

    captured: CapturedStep
    plan: Plan
    module: nn.Module
    store_all_bytes: int
    ways: tuple[Way, ...] = ()
    check_note: str = "not compared with the plain step"
    measured_bytes: int | None = None
    number: int = 0

    @property
    def change(self) -> StateChange | None:
        """The change since the step was captured; ``None`` if nothing has changed."""
        guards, backward = self.captured.guards, self.captured.backward
        change = None if guards is None else guards.change()
        return change if change is not None or backward is None else backward.change

    def shaped(self, loss: Tensor) -> Any:
        """`loss` in the form in which the model returns it."""
        kind = self.captured.output_class
        return loss if kind is None else kind(loss=loss)


def plan_captured(captured: CapturedStep, budget_bytes: int, settings: Settings) -> Plan:
    """The plan of a captured step within `budget_bytes`; it has no schedule where none fits.

    With several ranks, the first rank makes the plan, which is the same on all ranks.
    """
    return planned_once(
        lambda: _plan_captured(captured, budget_bytes, settings), captured.workload, settings.ranks
    )


def _plan_captured(captured: CapturedStep, budget_bytes: int, settings: Settings) -> Plan:
    options = dict(settings.options)
    if settings.offload:
        return _plan_copies(captured, budget_bytes, settings, options)
    # A plan without copies, to compare its price with a plan with copies.
    planner = "auto" if get_planner(settings.planner).needs_link else settings.planner
    tried: list[dict[str, Any]] = [{}]
    if settings.compile and captured.level == "op":
        watched = () if settings.time_limit_s is None else ("time_limit_s",)
        tried = orders(planner, (*settings.options, *watched))

    def plan_in(order: dict[str, Any]) -> Plan:
        search = _search_of(planner, {**options, **order}, settings, captured.workload)
        return _beside_states(captured, search(budget_bytes), budget_bytes, search)

    return first_that_fits(plan_in, tried)


def _search_of(
    planner: str, options: dict[str, Any], settings: Settings, workload: Chain | Graph
) -> Callable[[int], Plan]:
    """The function that asks `planner` for a plan of `workload` within so many bytes.

    By default the planner first gets a part of the work, which usually proves as much as all of it,
    and then all of it if a gap is left. Both parts count work, so that the plan is always the same.
    """
    if planner in ("auto", "local_search"):
        given, options = options, _with_effort(options, settings, workload)
    else:
        given = options
    is_compiled_freely = settings.compile and options.get("order") == "free"

    def asked(budget_bytes: int) -> Plan:
        with no_collection():  # a traced step is a million objects, none of which is garbage
            if "effort" in options and "effort" not in given and isinstance(workload, Graph):
                first = {**options, "effort": options["effort"] * _FIRST_SHARE}
                plan = try_plan(workload, budget_bytes, planner, **first)
                if plan.gap is not None and plan.gap <= _SMALL_GAP:
                    return plan
            return try_plan(workload, budget_bytes, planner, **options)

    def search(budget_bytes: int) -> Plan:
        plan = asked(budget_bytes)
        # Before anything is counted beside the schedule, which is the one that runs.
        return back_in_the_trace(workload, plan) if is_compiled_freely else plan

    return search


def _with_effort(
    options: dict[str, Any], settings: Settings, workload: Chain | Graph
) -> dict[str, Any]:
    """`options` with the work that a search may do, unless only seconds are given.

    Because work is counted, a model gets the same plan on a busy machine, too.
    """
    if settings.time_limit_s is not None:
        return {"time_limit_s": settings.time_limit_s, **options}
    if {"effort", "time_limit_s", "max_moves"} & set(options):
        return options
    return {"effort": _EFFORT + _EFFORT_PER_OP * len(workload.op_names), **options}


def _beside_states(
    captured: CapturedStep, plan: Plan, budget_bytes: int, search: Callable[[int], Plan]
) -> Plan:
    """`plan`, or one whose generator states fit beside it; its least budget includes them."""
    spare_bytes = 0
    for left in range(_STATE_TRIES, 0, -1):
        states_bytes = _states_bytes(captured, plan)
        if plan.peak_bytes is None or plan.peak_bytes + states_bytes <= budget_bytes:
            break
        # The graph's budget is what the states leave. Twice as many bytes are left the next time,
        # because another plan may repeat more random ops.
        most_bytes = captured.most_states_bytes
        # The last time all states have room, as the least budget assumes.
        more_bytes = max(states_bytes, 2 * spare_bytes) if left > 1 else most_bytes
        spare_bytes = min(more_bytes, most_bytes)
        plan = search(budget_bytes - spare_bytes)
    if plan.schedule is None:
        return _nearest_beside_states(captured, plan, budget_bytes, search)
    states_bytes = _states_bytes(captured, plan)
    return _with_states(captured, plan, states_bytes) if states_bytes else plan


def _nearest_beside_states(
    captured: CapturedStep, refused: Plan, budget_bytes: int, search: Callable[[int], Plan]
) -> Plan:
    """The plan of the least budget with its states, if they fit; or else `refused`, naming it.

    A plan seldom repeats all random ops: with the states of all, its least budget would be more
    than other plans need.
    """
    found = refused.min_feasible_bytes
    if found is not None and captured.most_states_bytes:
        nearest = search(found)
        states_bytes = _states_bytes(captured, nearest)
        found += captured.most_states_bytes
        if nearest.peak_bytes is not None:
            found = min(found, nearest.peak_bytes + states_bytes)
            if found <= budget_bytes:
                return _with_states(captured, nearest, states_bytes)
    return replace(
        refused, budget_bytes=budget_bytes, least=replace(refused.least, found_bytes=found)
    )


def _with_states(captured: CapturedStep, plan: Plan, states_bytes: int) -> Plan:
    step = StepChanges(captured.level, generator_states_bytes=states_bytes)
    return replace(plan, setting=replace(plan.setting, step=step))


def _states_bytes(captured: CapturedStep, plan: Plan) -> int:
    """Most bytes that `plan` keeps of generator states, if they count, and of changed buffers."""
    if plan.schedule is None or not captured.most_states_bytes:
        return 0
    return int(getattr(captured.make_module(plan.schedule), "replay_bytes", 0))


def _plan_copies(
    captured: CapturedStep, budget_bytes: int, settings: Settings, options: dict[str, Any]
) -> Plan:
    options = _with_effort(options, settings, captured.workload)
    planner = "offload" if settings.planner == "auto" else settings.planner
    link = settings.offload
    if link is True:
        link = measured_links(torch.device(captured.device))
    return try_plan(
        captured.workload,
        budget_bytes,
        planner,
        link=link,
        host_bytes=settings.host_bytes,
        **options,
    )


def offloading_of(plan: Plan) -> Offloading | None:
    """The links over which `plan` copies; ``None`` if it copies nothing."""
    return plan.setting.link if plan.setting.copies_anything(plan.schedule) else None


def plan_step(
    captured: CapturedStep,
    budget_bytes: int,
    store_all_bytes: int,
    settings: Settings,
    given: Any = None,
) -> PlannedStep:
    """The plan of a captured step within `budget_bytes`, and the module that runs it.

    Parameters
    ----------
    given
        Inputs and keywords of the step, for which a compiled step may be taken apart further.

    Raises
    ------
    InfeasibleBudgetError
        Nothing fits; the error names the least budget found feasible, and the op that sets it.
    """
    plan = plan_captured(captured, budget_bytes, settings)
    if given is not None:
        captured, plan = _taken_apart(captured, plan, budget_bytes, settings, given)
    return planned_step(captured, _feasible(captured, plan, settings), store_all_bytes, settings)


def _taken_apart(
    captured: CapturedStep, plan: Plan, budget_bytes: int, settings: Settings, given: Any
) -> tuple[CapturedStep, Plan]:
    """A step and its plan, or the same step as a graph for smaller budgets, if that is better.

    Smaller groups are tried where nothing fits, and once where the plan repeats much: there they
    may be quicker. All ranks have the same plans, and go the same way.
    """
    step, last = captured, plan
    tries_once = last.schedule is not None and _repeats_much(step, last)
    while last.schedule is None or tries_once:
        tries_once = False
        narrower = step.narrowed(given, settings.ranks)
        if narrower is None:
            break
        step, last = narrower, plan_captured(narrower, budget_bytes, settings)
        if is_better(last, plan):
            captured, plan = step, last
        elif plan.schedule is not None:
            break
    return captured, plan


def _repeats_much(captured: CapturedStep, plan: Plan) -> bool:
    assert plan.makespan_s is not None
    return plan.makespan_s > (1 + _MUCH_REPEATED) * captured.store_all_s


def _feasible(captured: CapturedStep, plan: Plan, settings: Settings) -> Plan:
    if plan.schedule is None:
        least, budget_bytes = plan.min_feasible_bytes, plan.budget_bytes
        refuted = plan.least.refutes(budget_bytes) and not plan.least.proven
        floor = format_bytes(plan.least.floor_bytes)
        raise InfeasibleBudgetError(
            f"a step of {captured.workload.name} does not fit {format_bytes(budget_bytes)} at the "
            f"{captured.level} level"
            + (f": {plan.least.sentence(plan.binding_op or '')}" if least else "")
            + (
                f"; proven over {plan.least.scope}: none fits in less than {floor}"
                if refuted
                else ""
            ),
            plan=plan,
            hint=(f"budget={least}" if least else "give more")
            + (", or a smaller optimizer state" if settings.optimizer else "")
            + plan.least.growing_hint,
        )
    return plan


@no_collection()
def planned_step(
    captured: CapturedStep,
    plan: Plan,
    store_all_bytes: int,
    settings: Settings,
    ways: tuple[Way, ...] = (),
) -> PlannedStep:
    """`captured` with the module that runs `plan`; `settings` have chosen one way."""
    plan = with_origin(plan, captured, settings)
    assert plan.schedule is not None
    module = _module(captured, plan, settings.ranks)
    if captured.splitter is not None:
        modules = {captured.part_size: module}
        for size, other in captured.others.items():
            smaller = _feasible(other, plan_captured(other, plan.budget_bytes, settings), settings)
            modules[size] = _module(other, smaller, settings.ranks)
        model: nn.Module = module.model  # type: ignore[assignment]
        module = AccumulatedStep(model, captured.splitter, lambda part: modules[part.num_samples])
    return PlannedStep(captured, plan, module, store_all_bytes, ways)


def _module(captured: CapturedStep, plan: Plan, ranks: Ranks) -> nn.Module:
    module = _scheduled(captured, plan)
    if ranks.bound:
        for part in module.modules():
            if isinstance(part, ScheduledBlocks):
                part.ranks = ranks
    return module


def _scheduled(captured: CapturedStep, plan: Plan) -> nn.Module:
    assert plan.schedule is not None
    offloading = offloading_of(plan)
    if captured.level == "op":
        module = captured.make_module(plan.schedule)
        module.watched = False  # type: ignore[assignment]  # by whoever chooses among plans
        return module
    if offloading is None:
        return captured.make_module(plan.schedule)
    graph = offloading.graph(captured.workload, plan.schedule)
    return captured.make_module(plan.schedule, graph, offloading.capacities(plan.budget_bytes))


def with_origin(plan: Plan, captured: CapturedStep, settings: Settings) -> Plan:
    """`plan` with what `schedsim.apply` must know about the step that the plan is for."""
    known = plan.setting.step
    step = StepChanges(
        captured.level,
        captured.structure_hash,
        captured.added_bytes,
        chunk=dict(settings.chunk or {}),
        accumulate=captured.num_parts,
        generator_states_bytes=known.generator_states_bytes if known is not None else 0,
        compiled=settings.compile and captured.level == "op",
    )
    return replace(plan, setting=replace(plan.setting, step=step))


def store_all_peak(captured: CapturedStep) -> int:
    """Bytes of the step that recomputes nothing."""
    workload = captured.workload
    return simulate(workload, Schedule.store_all(workload)).peak_bytes


def resolved_budget(
    settings: Settings, captured: CapturedStep | None, model: nn.Module, inputs: Any
) -> tuple[int, int]:
    """(budget, store-all peak) in bytes; the peak is 0 without `captured`.

    With several ranks, the smallest budget of any rank counts for all.
    """
    most = store_all_peak(captured) if captured is not None else 0
    resident: list[Any] = [*model.parameters(), *model.buffers()]
    resident += [p.grad for p in model.parameters() if p.grad is not None]
    resident += [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if isinstance(settings.optimizer, torch.optim.Optimizer):
        leaves = tree_leaves(dict(settings.optimizer.state))
        resident += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    budgets = settings.ranks.gather_from(
        "read the budget", lambda: budget_in_bytes(settings.budget, most, resident)
    )
    return min(budgets), most
