"""From a model and the inputs of a step to a schedule of the step, and a module that runs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from schedsim.algorithms import get_planner
from torch import Tensor, nn

from schedsim.api import try_plan
from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError
from schedsim.files.workload_files import workload_hash
from schedsim.plans.offloading import Offloading
from schedsim.plans.plan import Plan
from schedsim.plans.setting import StepChanges
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate
from schedsim.units import format_bytes

from .block_level import capture_chain
from .block_level.first_conditions import kept_buffer_bytes
from .block_level.gradients_made import given_gradients
from .block_level.repeated_forward import untouched
from .block_level.scheduled_blocks import ScheduledBlocks, loss_of
from .block_level.transfers import measured_links
from .block_times import BlockTimes
from .capture import CapturedGraph, capture
from .capture.capture import record_step
from .capture.program_builder import NoLossError
from .compiled.compile_step import compiled_where_it_works
from .costs import counted_costs, device_costs
from .guards.backward_place import BackwardAutocast
from .guards.differential import read_check
from .guards.reach import Reach
from .guards.recording import Recorded, kept_python
from .guards.state import StateSnapshot
from .guards.state_change import StateChange
from .measure.meters import meter_of_budgets, no_collection
from .op_level.recorded_ops import with_requests
from .optimizer_requests import with_optimizer
from .ranks import ALONE, Ranks
from .ranks.envelope import envelope
from .ranks.failures import is_elsewhere
from .ranks.members import is_spread
from .ranks.one_plan import planned_once
from .resident_state import ResidentState, resident_state
from .step_budget import budget_in_bytes
from .torch_private.pytrees import tree_leaves
from .ways.accumulate import AccumulatedStep
from .ways.chunk import chunked, read_chunks
from .ways.input_gradients import differentiable
from .ways.microbatch import MicroBatch, Splitter, bytes_of, check_splits, clone_tensors
from .ways.way import Way

LEVELS = ("auto", "op", "block")
COSTS = ("measured", "operations")
UNLIMITED_BYTES = 2**53 - 1
_EFFORT, _EFFORT_PER_OP = 2.0, 1 / 500
"""Units of work of a search, and additional units for each op, unless the caller gives them."""
_FIRST_SHARE, _SMALL_GAP = 1 / 8, 0.001
"""Share of that work with which a search begins, and the gap to the bound that is small enough."""
_STATE_TRIES = 4
SCALARS_BYTES = 16
"""Bytes of the loss and the count of a micro-batch, in a step of several micro-batches."""


class BlockLevelWarning(UserWarning):
    """The model cannot be planned op by op, and is planned block by block."""


@dataclass(frozen=True)
class Settings:
    """How steps of a model are planned: the arguments of `rematerialize`, and the ranks."""

    budget: int | str
    loss: Callable[..., Tensor] | None = None
    optimizer: Any = None
    level: str = "auto"
    planner: str = "auto"
    time_limit_s: float | None = None
    keep_gradients: bool = False
    extra_bytes: int = 0
    costs: str = "measured"
    options: Mapping[str, Any] = field(default_factory=dict)
    chunk: Any = None
    accumulate: int | str | None = None
    offload: Any = None
    host_bytes: int | str | None = None
    check: str | int = "plan"
    ranks: Ranks = ALONE
    compile: bool = False
    remeasure: bool = False
    largest: Mapping[int, int] = field(default_factory=dict)

    @property
    def bound_ranks(self) -> Ranks:
        """The ranks that must follow one plan together with this rank."""
        return self.ranks if self.ranks.bound else ALONE

    def alike(self) -> tuple[tuple[str, str], ...]:
        """Settings that must be equal on all ranks that follow one plan, by name, in words."""
        names = (
            "level",
            "planner",
            "time_limit_s",
            "keep_gradients",
            "costs",
            "options",
            "chunk",
            "accumulate",
            "offload",
            "check",
            "compile",
        )
        return tuple((name, repr(getattr(self, name))) for name in names)

    def __post_init__(self) -> None:
        read_check(self.check)
        if self.level not in LEVELS:
            raise SchedsimError(f"level={self.level!r} is unknown", hint="auto, op or block")
        if self.costs not in COSTS:
            raise SchedsimError(f"costs={self.costs!r} is unknown", hint=" or ".join(COSTS))
        if self.costs != "measured" and self.level == "block":
            raise SchedsimError(
                f"costs={self.costs!r} at the block level", hint="blocks have measured times alone"
            )
        num = self.accumulate
        whole = isinstance(num, int) and not isinstance(num, bool) and num >= 1
        if not (num is None or num == "auto" or whole):
            raise SchedsimError(
                f"accumulate={num!r} is not understood", hint="'auto', or a number of micro-batches"
            )
        read_chunks(self.chunk)
        if self.offload and self.level == "op":
            raise UnsupportedError(
                "offload= is of the block level: ops run on one stream", hint="level='block'"
            )
        if self.compile and (self.level == "block" or self.offload):
            what = "offload=" if self.offload else "level='block'"
            raise UnsupportedError(
                f"compile=True is of the op level, and {what} of the block level",
                hint=f"leave {what} or compile= out",
            )


@dataclass(frozen=True)
class CapturedStep:
    """A step of a model as a workload, with everything resident counted.

    Attributes
    ----------
    level
        ``"op"`` or ``"block"``.
    make_module
        A function from a schedule to the module that runs it; for blocks, from a schedule with the
        graph of its copies and the capacities within which the copies were planned.
    most_states_bytes
        Most bytes of generator states for repeated dropout, where these are in the memory that the
        plan is for: the host's. By blocks, of the buffers that blocks change, kept for repeats. The
        workload does not count them.
    output_class
        For a model that returns its own loss in an output object: the class of that object.
    splitter, num_parts, part_size, others
        Where the step is one of `num_parts` micro-batches: what splits the batch, the number of
        samples in the largest micro-batch, which this one is, and the captures for other sizes.
    kept_gradients_bytes
        Bytes of gradients that are counted among the static bytes.
    backward
        Where a traced backward was taken to run; ``None`` where autograd itself runs it.
    recorded, guards
        What a forward was seen to do besides computing, and the state of Python that the plan
        assumes: another state needs another plan.
    narrower
        Makes, from inputs and keywords, the same step as a graph for smaller budgets, once.
    """

    level: str
    workload: Chain | Graph
    state: ResidentState
    make_module: Callable[..., nn.Module]
    notes: tuple[str, ...]
    output_class: type | None
    splitter: Splitter | None = None
    num_parts: int = 1
    part_size: int = 0
    others: Mapping[int, CapturedStep] = field(default_factory=dict)
    kept_gradients_bytes: int = 0
    device: torch.device | str = "cpu"
    most_states_bytes: int = 0
    recorded: Recorded | None = None
    guards: StateSnapshot | None = None
    backward: BackwardAutocast | None = None
    narrower: Callable[[Any], CapturedStep | None] | None = None

    def narrowed(self, given: Any) -> CapturedStep | None:
        """The same step as a slower graph for smaller budgets; ``None`` if there is none.

        Parameters
        ----------
        given
            Inputs and keywords of the step.
        """
        found = None if self.narrower is None else self.narrower(given)
        if found is None:
            return None
        found = found.with_added(self.added_bytes)
        return replace(found, recorded=self.recorded, guards=self.guards)

    @property
    def store_all_s(self) -> float:
        """Seconds of all ops, each run once."""
        return float(sum(op.time_s for op in self.workload.graph.ops))

    @property
    def added_bytes(self) -> int:
        """Static bytes that do not come from the model alone."""
        return self.workload.static_bytes - self._own_static_bytes

    _own_static_bytes: int = 0

    def with_added(self, added_bytes: int) -> CapturedStep:
        """The same step with `added_bytes` in place of the optimizer and extra bytes so far."""
        more = added_bytes - self.added_bytes
        workload = replace(self.workload, static_bytes=self.workload.static_bytes + more)
        state = replace(self.state, extra_bytes=max(0, self.state.extra_bytes + more))
        return replace(self, workload=workload, state=state)

    @property
    def structure_hash(self) -> str:
        """Content hash without machine, optimizer and name."""
        return workload_hash(bare(self.workload, self._own_static_bytes))


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


def bare(workload: Chain | Graph, static_bytes: int) -> Chain | Graph:
    """`workload` without times and workspaces."""
    if isinstance(workload, Chain):
        stages = tuple(
            replace(
                stage,
                forward_s=0.0,
                backward_s=0.0,
                forward_workspace_bytes=0,
                backward_workspace_bytes=0,
                saving_workspace_bytes=None,
            )
            for stage in workload.stages
        )
        none: dict[str, Any] = {"loss_s": 0.0, "loss_workspace_bytes": 0, "gradient_bytes": ()}
        return replace(workload, stages=stages, static_bytes=static_bytes, **none)
    clear: dict[str, Any] = {"workspace_bytes": 0, "saving_workspace_bytes": None}
    ops = tuple(replace(op, time_s=0.0, **clear) for op in workload.ops)
    return replace(workload, ops=ops, static_bytes=static_bytes)


class _OwnLoss:
    """The loss that a model computes itself; it notes the class of the output object."""

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
    """One training step of `model`, captured op by op where that works, else by blocks.

    If `settings` give numbers of chunks or micro-batches, the step is captured with these; with
    micro-batches, it is the step of the largest one.

    Raises
    ------
    UnsupportedError
        Neither level works, or the level asked for does not.
    """
    num = settings.accumulate if isinstance(settings.accumulate, int) else 1
    if num == 1:
        return _capture(model, inputs, keywords, settings, 0)
    check_splits(model)
    splitter = Splitter(model, settings.loss, num)
    parts = splitter.parts(inputs, keywords)
    settings.ranks.same("compare batches", {"micro-batches": [part.num_samples for part in parts]})
    whole_bytes = sum(bytes_of(clone) for clone in _whole(parts))
    whole_bytes += bytes_of(differentiable((inputs, dict(keywords))))  # their gradients
    found: dict[int, CapturedStep] = {}
    for part in parts:
        if part.num_samples in found:
            continue
        own, words, buffers = clone_tensors((part.inputs, part.keywords, part.buffers))
        rest = max(0, whole_bytes - bytes_of((own, words, buffers))) + SCALARS_BYTES * num
        each = replace(settings, loss=splitter.loss, accumulate=num)
        with splitter.targets_of(replace(part, buffers=buffers)):
            captured = _capture(model, own, words, each, rest)
        if captured.guards is not None and isinstance(settings.loss, nn.Module):
            # The caller changes the loss that was given; the twin of the loss has other targets in
            # each part.
            captured = replace(captured, guards=captured.guards.of({"loss": settings.loss}))
        found[part.num_samples] = captured
    size = max(found)
    main = found.pop(size)
    return replace(main, splitter=splitter, num_parts=len(parts), part_size=size, others=found)


def _whole(parts: list[MicroBatch]) -> list[Any]:
    """The tensors of all parts together; tensors that each part needs whole count once."""
    seen: set[int] = set()
    tensors = []
    for part in parts:
        for leaf in tree_leaves((part.inputs, part.keywords, part.buffers)):
            if isinstance(leaf, Tensor) and leaf.data_ptr() not in seen:
                seen.add(leaf.data_ptr())
                tensors.append(leaf)
    return tensors


@no_collection()  # hundreds of thousands of objects are made, none of which is garbage
def _capture(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    rest_bytes: int,
) -> CapturedStep:
    """The step with chunks; `rest_bytes` of inputs are resident additionally."""
    state = resident_state(_held(model, settings.loss), settings.optimizer, settings.extra_bytes)
    added = state.optimizer_bytes + state.extra_bytes + rest_bytes
    chunks = {piece: int(num) for piece, num in read_chunks(settings.chunk).items()}

    def with_chunks(level: str) -> tuple[nn.Module, Settings]:
        if not chunks:
            return model, settings
        unrolled = level == "op"
        other, loss = chunked(model, settings.loss, inputs, keywords, chunks, unrolled=unrolled)
        return other, replace(settings, loss=loss)

    ranks = settings.ranks

    def by_block(notes: tuple[str, ...], way_out: str = "") -> CapturedStep:
        def measure() -> CapturedStep:
            other, changed = with_chunks("block")
            try:
                found = _by_block(other, inputs, keywords, changed, state, added, notes, recorded)
            except UnsupportedError as error:
                if not notes:
                    raise
                raise UnsupportedError(
                    f"{error.message}; {notes[0]}",
                    hint=f"{way_out}in_place=True, for a loop that computes the loss itself, runs "
                    "what can be traced within the budget and the rest as it is",
                ) from error
            # Blocks run the model's own Python; a chunked twin has taken its attributes over.
            if recorded is not None and chunks:
                guards = recorded.state()
            else:
                guards = structure_of(model, settings.loss)
            return replace(found, recorded=recorded, guards=guards)

        return _of_all(ranks.together("measure", measure, runs_model=True), ranks)

    own_loss = settings.loss or loss_of
    watched = getattr(settings.loss, "inner_loss", settings.loss)
    recorded: Recorded | None = None
    if settings.bound_ranks.alone:  # a model that communicates is run by all ranks, in lockstep
        recorded = record_step(model, own_loss, inputs, keywords, watched or own_loss)
        recorded.refuse_foreign_leaves()
        if not recorded.trains:
            raise NoLossError(
                f"the loss of {type(model).__name__} needs no gradient, so that there is no "
                "backward pass to schedule",
                hint="model.requires_grad_(), or an input that requires a gradient",
            )
    several = isinstance(settings.accumulate, int) and settings.accumulate > 1
    if several and recorded is not None and (recorded.effects or recorded.draws):
        what = recorded.effects[0] if recorded.effects else f"draws from {recorded.draws[0]}"
        raise UnsupportedError(
            f"micro-batches would do several times what a step does once: {what}",
            hint="leave accumulate= out, or do it in the loop",
        )
    with _kept_random_numbers(model), kept_python(recorded):
        if settings.level == "block" or settings.offload:
            return by_block(())

        def by_op() -> CapturedStep:
            if recorded is None:
                return _by_op(model, inputs, keywords, settings, state, added, recorded)
            recorded.refuse_graph()
            with recorded.settled():
                other, changed = with_chunks("op")
                found = _by_op(other, inputs, keywords, changed, state, added, recorded)
                return replace(found, recorded=recorded, guards=recorded.state())

        try:
            return _of_all(ranks.together("capture", by_op, runs_model=True), ranks)
        except NoLossError as error:
            if settings.loss is not None:
                raise
            raise SchedsimError(
                f"loss= is missing: {error.message}",
                hint="loss=cross_entropy, or in_place=True for a loss that the loop computes",
            ) from error
        except Exception as error:  # raised by a tracer, or by the model's own code on fakes
            if is_elsewhere(error):
                raise
            hint, by_level = getattr(error, "hint", None) or "", "level='block'"
            way_out = hint.removesuffix(by_level) if hint.endswith(f"; or {by_level}") else ""
            why = " ".join(str(error).split())[:300]
            ours = isinstance(error, SchedsimError | torch.OutOfMemoryError)
            if settings.level == "op" and (ours or not settings.bound_ranks.alone):
                raise
            if settings.level == "op":
                raise UnsupportedError(
                    f"{type(model).__name__} cannot be captured op by op: "
                    f"{type(error).__name__}: {why}",
                    hint="level='block'",
                ) from error
        if settings.compile:
            why += "; blocks run uncompiled"
        note = f"planned by blocks, as it cannot be captured op by op: {why}"
        warnings.warn(f"{type(model).__name__} is {note}", BlockLevelWarning, stacklevel=5)
        return by_block((note,), way_out)


def _held(model: nn.Module, loss: Any) -> nn.Module:
    """A module with all trained parameters: the loss may have some of its own."""
    inner = getattr(loss, "inner_loss", loss)
    if not isinstance(inner, nn.Module) or next(inner.parameters(), None) is None:
        return model
    return nn.ModuleList([model, inner])


def structure_of(model: nn.Module, loss: Any) -> StateSnapshot:
    """The modules, parameters and hooks of a step, and the functions that are its forwards."""
    own = loss if isinstance(loss, nn.Module) else None
    skip = frozenset({"_buffers"})
    if is_spread(model):
        skip |= {"_parameters"}  # gathered ones take the place of shards, and give it back
    return StateSnapshot({"model": model, "loss": own}, Reach(frozenset({"forward"})), skip)


def _of_all(captured: CapturedStep, ranks: Ranks) -> CapturedStep:
    """`captured` with the largest sizes and times of all ranks, so that one plan fits all ranks."""
    if ranks.alone:
        return captured
    own = max(ranks.gather(captured._own_static_bytes, "compare steps"))
    states = max(ranks.gather(captured.most_states_bytes, "compare steps"))
    return replace(
        captured,
        workload=envelope(captured.workload, ranks),
        most_states_bytes=states,
        _own_static_bytes=own,
    )


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
    recorded: Recorded | None,
) -> CapturedStep:
    own = _OwnLoss()
    loss = settings.loss or own
    micro = isinstance(settings.accumulate, int) and settings.accumulate > 1
    if recorded is not None and recorded.questions and micro:
        raise UnsupportedError(
            f"{recorded.questions[0].name} of a tensor decides what a micro-batch runs",
            hint="level='block'",
        )
    captured: CapturedGraph = capture(model, inputs, loss, kwargs=keywords, recorded=recorded)
    if settings.compile and captured.runnable:
        captured = compiled_where_it_works(captured)
    if not captured.runnable:
        raise UnsupportedError(
            "the model lies on the meta device, where no step can run", hint="load it first"
        )
    if settings.loss is None and captured.front == "dynamo":
        # Traced code leaves no notes: only a real run shows the class of the output.
        with torch.no_grad(), untouched(model):
            own.note(model(*inputs, **keywords))
    finish = partial(_with_costs, model, settings, state, added)
    found = replace(finish(captured, (inputs, keywords)), output_class=own.output_class)
    make = captured.narrower
    known: list[CapturedStep | None] = []
    if make is None or not settings.bound_ranks.alone:
        return found

    def narrower(given: Any) -> CapturedStep | None:
        if not known:
            with _kept_random_numbers(model):
                graph = make()
                known.append(None if graph is None else finish(graph, given))
        return known[0] and replace(known[0], output_class=own.output_class)

    return replace(found, narrower=narrower)


def _with_costs(
    model: nn.Module,
    settings: Settings,
    state: ResidentState,
    added: int,
    captured: CapturedGraph,
    given: Any,
) -> CapturedStep:
    """`captured` with the costs of its ops, and all that is resident."""
    device = next(model.parameters()).device
    costs = device_costs(captured, device, use_cache=not settings.remeasure)
    if settings.costs == "operations":
        costs = counted_costs(captured, costs)
    captured = captured.with_costs(costs)
    static = captured.graph.static_bytes
    # From the second micro-batch on, gradients exist before the step; so may the caller's.
    several = isinstance(settings.accumulate, int) and settings.accumulate > 1
    kept = state.gradients_bytes * (int(settings.keep_gradients) + int(several))
    captured = captured.with_state(added + kept)
    if settings.bound_ranks.alone and not several:
        captured = with_requests(captured, given, keeps_gradients=settings.keep_gradients)
    graph, line = _with_optimizer(captured.graph, model, settings, given)
    return CapturedStep(
        "op",
        graph,
        state,
        captured.module,
        (*captured.notes, *line),
        None,
        kept_gradients_bytes=kept,
        most_states_bytes=_most_states_bytes(captured),
        backward=captured.backward,
        _own_static_bytes=static,
    )


def _with_optimizer(
    workload: Any, model: nn.Module, settings: Settings, inputs: Any
) -> tuple[Any, tuple[str, ...]]:
    """`workload` with the optimizer's step, if its requests are recorded, and a line about it."""
    if workload.recorded is None:
        return workload, ()
    held = _held(model, settings.loss)
    resident = [*held.parameters(), *held.buffers(), inputs]
    recorded, line = with_optimizer(workload.recorded, settings.optimizer, held, resident)
    return replace(workload, recorded=recorded), (line,) if line else ()


def _by_block(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    settings: Settings,
    state: ResidentState,
    added: int,
    notes: tuple[str, ...],
    recorded: Recorded | None,
) -> CapturedStep:
    if any(_is_tensor(leaf) and leaf.requires_grad for leaf in tree_leaves((inputs, keywords))):
        raise UnsupportedError(
            "an input requires a gradient, which a step by blocks does not give",
            hint="level='op', or in_place=True; or detach the input",
        )
    own = _OwnLoss()
    handle = model.register_forward_hook(lambda _, __, output: own.note(output))
    device = next(model.parameters()).device
    times = BlockTimes(
        device,
        read=not settings.remeasure,
        num_ranks=len(settings.bound_ranks.members),
    )
    several = isinstance(settings.accumulate, int) and settings.accumulate > 1
    # From the second micro-batch on, gradients exist before the step.
    resident = settings.keep_gradients or several
    try:
        with given_gradients(model, settings.loss, resident=resident):
            captured = capture_chain(
                model,
                inputs,
                settings.loss,
                kwargs=keywords,
                meter=meter_of_budgets(device),
                rounds=3,
                known_times=times.find,
                movable=bool(settings.offload),
                recorded=recorded,
                ranks=settings.bound_ranks,
            )
    except (SchedsimError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # raised by the model's own code, whose blocks do not run alone
        if not settings.bound_ranks.alone:
            raise
        text = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"{type(model).__name__} cannot be run block by block: {type(error).__name__}: {text}",
            hint="use --level op, or list the blocks yourself",
        ) from error
    finally:
        handle.remove()
    times.keep(captured.workload, captured.times_spread)
    if settings.offload:
        captured = captured.with_input_held
    static = captured.workload.static_bytes
    if settings.keep_gradients and several:
        added += state.gradients_bytes  # the caller's gradients, besides the micro-batches'
    workload = replace(captured.workload, static_bytes=static + added)
    workload, line = _with_optimizer(workload, model, settings, (inputs, keywords))
    # Another step can run without the inputs of the capture.
    slim = replace(captured, workload=workload, inputs=(), keywords={})
    output_class = own.output_class if settings.loss is None else None
    return CapturedStep(
        "block",
        workload,
        state,
        slim.module,
        (*notes, *captured.notes, *line),
        output_class,
        kept_gradients_bytes=state.gradients_bytes if captured.keeps_gradients else 0,
        device=next(model.parameters()).device,
        most_states_bytes=kept_buffer_bytes(captured.layout.state),
        _own_static_bytes=static,
    )


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
    search = _search_of(planner, options, settings, captured.workload)
    return _beside_states(captured, search(budget_bytes), budget_bytes, search)


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

    def search(budget_bytes: int) -> Plan:
        with no_collection():  # a traced step is a million objects, none of which is garbage
            if "effort" in options and "effort" not in given and isinstance(workload, Graph):
                first = {**options, "effort": options["effort"] * _FIRST_SHARE}
                plan = try_plan(workload, budget_bytes, planner, **first)
                if plan.gap is not None and plan.gap <= _SMALL_GAP:
                    return plan
            return try_plan(workload, budget_bytes, planner, **options)

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
    if plan.schedule is not None:
        states_bytes = _states_bytes(captured, plan)
        if not states_bytes:
            return plan
        step = StepChanges(captured.level, generator_states_bytes=states_bytes)
        return replace(plan, setting=replace(plan.setting, step=step))
    found = plan.min_feasible_bytes
    if found is not None:
        found += captured.most_states_bytes
    return replace(plan, budget_bytes=budget_bytes, least=replace(plan.least, found_bytes=found))


def _states_bytes(captured: CapturedStep, plan: Plan) -> int:
    """Most bytes that `plan` keeps of generator states, if they count, and of changed buffers."""
    if plan.schedule is None or not captured.most_states_bytes:
        return 0
    return int(getattr(captured.make_module(plan.schedule), "replay_bytes", 0))


def _most_states_bytes(captured: CapturedGraph) -> int:
    if captured.backend != "cpu":
        return 0
    num_random = sum(call.random for call in captured.program.calls)
    # One additional state is put aside while a repeat runs.
    return (num_random + 1) * torch.get_rng_state().numel() if num_random else 0


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
    narrow = captured.narrowed(given) if plan.schedule is None and given is not None else None
    if narrow is not None:
        other = plan_captured(narrow, budget_bytes, settings)
        if other.schedule is not None or _least(other) < _least(plan):
            captured, plan = narrow, other
    return planned_step(captured, _feasible(captured, plan, settings), store_all_bytes, settings)


def _least(plan: Plan) -> int:
    found = plan.min_feasible_bytes
    return UNLIMITED_BYTES if found is None else found


def _feasible(captured: CapturedStep, plan: Plan, settings: Settings) -> Plan:
    if plan.schedule is None:
        least, budget_bytes = plan.min_feasible_bytes, plan.budget_bytes
        raise InfeasibleBudgetError(
            f"a step of {captured.workload.name} does not fit {format_bytes(budget_bytes)} at the "
            f"{captured.level} level"
            + (f": {plan.least.sentence(plan.binding_op or '')}" if least else ""),
            plan=plan,
            hint=(f"budget={least}, " if least else "give more, ")
            + ("a smaller optimizer state, " if settings.optimizer else "")
            + "accumulate='auto' (micro-batches), or chunk='auto'",
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
    resident += [leaf for leaf in tree_leaves(inputs) if _is_tensor(leaf)]
    if isinstance(settings.optimizer, torch.optim.Optimizer):
        leaves = tree_leaves(dict(settings.optimizer.state))
        resident += [leaf for leaf in leaves if _is_tensor(leaf)]
    budgets = settings.ranks.gather_from(
        "read the budget", lambda: budget_in_bytes(settings.budget, most, resident)
    )
    return min(budgets), most


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)
