"""From a model and the inputs of a step to the step as a workload: op by op, or by blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..block_level import capture_chain
from ..block_level.first_conditions import kept_buffer_bytes
from ..block_level.forward_writes import undone_writes
from ..block_level.gradients_made import given_gradients
from ..block_level.repeated_forward import untouched
from ..block_level.scheduled_blocks import loss_of
from ..block_times import BlockTimes
from ..capture import CapturedGraph, capture
from ..capture.capture import record_step
from ..capture.program import generator_states_bytes
from ..capture.program_builder import NoLossError
from ..capture.summed_gradients import with_summed_gradients
from ..compiled.compile_step import compiled_where_it_works
from ..costs import counted_costs, device_costs
from ..guards.reach import Reach
from ..guards.recording import Recorded, kept_python
from ..guards.state import StateSnapshot
from ..measure.meters import meter_of_budgets, no_collection
from ..op_level.recorded_ops import with_requests
from ..optimizer_requests import with_optimizer
from ..ranks.failures import is_elsewhere
from ..ranks.members import is_spread
from ..torch_private.pytrees import tree_leaves
from ..user_warnings import warn_user
from ..ways.chunk import chunked, read_chunks
from ..ways.input_gradients import differentiable
from ..ways.microbatch import MicroBatch, Splitter, bytes_of, check_splits, clone_tensors
from .captured_step import CapturedStep
from .resident_state import ResidentState, resident_state
from .step_settings import Settings

SCALARS_BYTES = 16
"""Bytes of the loss and the count of a micro-batch, in a step of several micro-batches."""


class BlockLevelWarning(UserWarning):
    """The model cannot be planned op by op, and is planned block by block."""


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

        return ranks.together("measure", measure, runs_model=True).of_all(ranks)

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
            return ranks.together("capture", by_op, runs_model=True).of_all(ranks)
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
        warn_user(f"{type(model).__name__} is {note}", BlockLevelWarning)
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
    if micro:
        captured = with_summed_gradients(captured)
    if settings.compile and captured.runnable:
        captured = compiled_where_it_works(captured)
    if not captured.runnable:
        raise UnsupportedError(
            "the model lies on the meta device, where no step can run", hint="load it first"
        )
    if settings.loss is None and captured.front == "dynamo":
        # Traced code leaves no notes: only a real run shows the class of the output.
        with torch.no_grad(), untouched(model), undone_writes(model) as writes, writes.seen():
            own.note(model(*inputs, **keywords))
    finish = partial(_with_costs, model, settings, state, added)

    def step_of(graph: CapturedGraph, given: Any) -> CapturedStep:
        found = replace(finish(graph, given), output_class=own.output_class)
        make = graph.narrower
        known: list[CapturedStep | None] = []
        if make is None:
            return found

        def narrower(given: Any) -> CapturedStep | None:
            if not known:
                with _kept_random_numbers(model):
                    smaller = make()
                    known.append(None if smaller is None else step_of(smaller, given))
            return known[0]

        return replace(found, narrower=narrower)

    return step_of(captured, (inputs, keywords))


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
    # Sums of gradients exist before each micro-batch, which adds to them; so may the caller's.
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
        most_states_bytes=generator_states_bytes(captured.program, captured.backend),
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
    if any(
        isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves((inputs, keywords))
    ):
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
