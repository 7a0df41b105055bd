"""The first step of a model that gets its budget: traced, planned, compared; no trace is left."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import InfeasibleBudgetError, SchedsimError, UnsupportedError

from ..autocasts import run_backward
from ..block_level.repeated_forward import untouched
from ..capture.capture import record_step
from ..guards.differential import Difference, NotCompared
from ..guards.plan_variants import PlainStepWarning, RoundingWarning
from ..guards.reach import static_reach
from ..guards.recording import detached_copies, refuse_iterators
from ..guards.saved_elsewhere import copied_aside, copied_elsewhere, forbids_hooks
from ..guards.state import StateSnapshot
from ..guards.state_walk import HOOKS
from ..measure.storage import storage_bytes
from ..ranks import Ranks
from ..torch_private.dynamo_settings import left_open
from ..torch_private.module_tables import (
    as_itself,
    attributes_of,
    call_as_itself,
    replacement_of,
)
from ..torch_private.pytrees import tree_map_only
from ..torch_private.sharded_groups import reducing
from ..torch_private.storage_refs import DataPlaces
from ..user_warnings import warn_user
from ..whole_step.step_check import PlainMemory, no_room_elsewhere
from .beside.compared_bytes import PLAIN, PLANNED, ComparedBytes
from .checks.plain_check import (
    MadeUpGradients,
    difference,
    difference_of_results,
    made_up_loss,
    results_on_rank,
    run_on_rank,
    without_gradients,
)
from .drop_in_options import DropInOptions
from .gathered_session import GatheredSession
from .session import Session

_NUM_REHEARSED = 3
"""Steps after which all is planned: one is measured, and the next one begins with the plan."""


def rehearse(
    model: nn.Module, session: Session, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Run a step of `model`, whose call is by its schedules, and compare it with the plain one.

    Raises
    ------
    InfeasibleBudgetError
        The forward and backward of `model` alone do not fit.
    UnsupportedError
        The step by the schedules differs from the plain one, or fails.
    """
    left = _left_as_it_is(model, inputs, keywords, session.checks)
    with _in_training(model), session.rehearsing(), left as (written, restore):
        session.note_written(written)
        with untouched(model):
            refused: InfeasibleBudgetError | None = None
            try:
                _run(model, inputs, keywords)
            except InfeasibleBudgetError as error:
                # Without the frames of the forward, whose tensors another try would find there.
                refused = error.with_traceback(None)
            if refused is not None:
                raise session.refused_again(refused, lambda: _step(model, inputs, keywords))
            if session.is_held():  # as by a weight that a norm sets anew in each forward
                restore()
            if session.holds_forward():
                _step(model, inputs, keywords)
        if session.has_broken:
            gc.collect()  # Dynamo leaves cycles, with the outputs of the forward it has traced
        if session.checks and session.parts:
            session.check_note = _compared(model, session, inputs, keywords)
            session.note_compared()


def rehearse_together(
    model: nn.Module,
    session: GatheredSession,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    ranks: Ranks,
) -> None:
    """Do so with a model that gathers: all ranks run the steps together, in training mode.

    Ranks say by the mode what they do. What hooks change stays: among them are those that gather.
    """
    if not model.training:
        model.train()
    left = _left_as_it_is(model, inputs, keywords, False, HOOKS)
    with session.rehearsing(), left, untouched(model), reducing(model):
        _run_by_all(model, session, inputs, keywords, ranks)


def with_open_sizes(
    inputs: tuple[Any, ...], keywords: Mapping[str, Any], options: DropInOptions
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Inputs of which a trace leaves the sizes open for which a largest one is given."""
    if not options.largest or options.dynamic is False:
        return inputs, keywords

    def opened(tensor: Tensor) -> Tensor:
        return left_open(tensor, [d for d in options.largest if -tensor.ndim <= d < tensor.ndim])

    changed: tuple[Any, Any] = tree_map_only(Tensor, opened, (inputs, dict(keywords)))
    return changed


@contextmanager
def _in_training(model: nn.Module) -> Iterator[None]:
    """Put a model that is in evaluation mode in training mode, for which loops mostly want it."""
    modes = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _left_as_it_is(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    records: bool,
    skip: frozenset[str] = frozenset(),
) -> Iterator[tuple[tuple[torch.Tensor, ...], Callable[[], None]]]:
    """Restore what a forward changes besides buffers: counters, globals, generators, parameters.

    Gives the tensors that the plain forward writes in place, and what restores Python's state.

    Parameters
    ----------
    records
        Whether a plain forward runs before, which tells the tensors that it writes in place: those
        of a layer that takes its parameters from the first batch.
    skip
        Tables of modules that are not looked at.

    Raises
    ------
    UnsupportedError
        A step can read an iterator, of which the forwards here would use up items.
    """
    state = StateSnapshot({"model": model}, static_reach([model]), skip)
    refuse_iterators(state)
    written: tuple[torch.Tensor, ...] = ()
    if records:
        with as_itself(model), suppress(Exception):  # what fails is told by the steps below
            recorded = record_step(
                model, MadeUpGradients().loss, inputs, keywords, parts_may_be_scripted=True
            )
            written = recorded.written
            del recorded  # which holds what the forward has set, too
    held = DataPlaces([*model.parameters(), *model.buffers(), *written])
    with copied_elsewhere() as copied:
        contents = [(tensor, copied_aside(tensor, copied)) for tensor in written]
        try:
            yield written, state.restore
        finally:
            held.restore()
            state.restore()
            with torch.no_grad():
                for tensor, content in contents:
                    tensor.detach().copy_(content)


def _run(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Trace a forward and plan it; raises if that fails and the plain forward does not."""
    try:
        model(*inputs, **keywords)
    except SchedsimError:
        raise
    except Exception as error:  # raised by Dynamo, by a kernel, by the model itself
        call_as_itself(model)(*inputs, **keywords)
        text = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"a forward of {type(model).__name__} by its schedules fails: "
            f"{type(error).__name__}: {text}",
            hint="nothing was changed; train without, or give the loss: loss=",
        ) from error


def _step(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Run a step with a made-up loss, whose gradients are not kept."""
    with without_gradients(model):
        given, named = detached_copies((inputs, dict(keywords)))
        run_backward(made_up_loss(model(*given, **named)))


def _compared(
    model: nn.Module, session: Session, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str:
    """A line on how a step by the schedules compares with the plain one."""
    device = torch.device(session.parts[0].device)
    why = no_room_elsewhere(session.store_all_bytes, device)
    if why is not None:
        return f"not compared with the plain step: {why}"
    # Dynamo no longer traces a function that was called in a mode which looks at every op.
    call = replacement_of(model)
    assert call is not None
    rounded = session.options.compile
    taken = ComparedBytes(device)
    with as_itself(model), untouched(model):
        try:
            memory = PlainMemory(lambda: session.store_all_bytes, device)
            found = difference(
                model,
                taken.watched(PLAIN, model),
                taken.watched(PLANNED, call),
                (inputs, keywords),
                rounded,
                memory,
            )
        except (NotCompared, torch.OutOfMemoryError, OSError) as error:
            text = " ".join(str(error).split())[:200]
            return f"not compared with the plain step: {text}"
        finally:
            taken.ends()
    if found is not None and found.refusal is not None:
        raise found.refusal
    note = _told(model, session, found)
    return "; ".join([note, *_over_budget(model, session, taken, (inputs, keywords))])


def _over_budget(
    model: nn.Module,
    session: Session,
    taken: ComparedBytes,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
) -> list[str]:
    """The line of a comparison that has taken more than the budget, which is told.

    Or will be, where a share of a step is not known before the code between its graphs.
    """
    budget = session.budget_bytes
    if budget is None:
        return []
    if PLANNED in taken.cut - taken.tops.keys():
        with untouched(model):
            taken.begins(PLANNED)
            try:
                _step(model, *given)
            finally:
                taken.ends()
        if PLANNED in taken.tops:
            taken.tops[PLANNED] -= storage_bytes(given)  # its inputs were copies
    # Beside the planned step are those of before, of the record, and of the plain step.
    resident = session.resident_bytes(given) + 3 * storage_bytes(attributes_of(model))
    is_broken = session.has_broken
    if is_broken and session.options.is_share:
        session.lines_of_call = partial(taken.lines, resident, is_broken=True)
        return []
    lines = list(taken.lines(resident, budget, is_broken=is_broken))
    for line in lines:
        warn_user(line, PlainStepWarning)
    return lines


def _told(model: nn.Module, session: Session, found: Difference | None) -> str:
    """A line for the report on what a comparison has found; warns where it is rounding."""
    name = type(model).__name__
    if found is None:
        within = "within rounding" if session.options.compile else "to the bit"
        return f"outputs, gradients, buffers and generators are the plain step's {within}"
    if not found.rounding:
        what = "does not run" if found.is_error else "is not the plain one"
        raise UnsupportedError(
            f"the step of {name} by its schedules {what}: {found}",
            hint="nothing was changed; train without, or give the loss: loss=",
        )
    line = f"the step of {name} is the plain one within rounding: {found}"
    warn_user(line, RoundingWarning)
    return f"not the plain step to the bit: {found}"


def _run_by_all(
    model: nn.Module,
    session: GatheredSession,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    ranks: Ranks,
) -> None:
    """Trace a step that all ranks run together, measure it, and compare one with the plain step.

    The ranks run as many steps whatever they find: each is a collective of all.
    """
    name = type(model).__name__
    run_on_rank(model, inputs, keywords)
    session.is_rehearsed = True
    with session.gauging():
        run_on_rank(model, inputs, keywords)
    if not (session.checks and session.parts):
        return
    device = torch.device(session.parts[0].device)
    why = no_room_elsewhere(session.store_all_bytes, device)
    reasons = [reason for reason in ranks.gather(why, "compare steps") if reason is not None]
    if reasons:
        session.check_note = f"not compared with the plain step: {reasons[0]}"
        return
    given, plain = (inputs, keywords), call_as_itself(model)
    with copied_elsewhere() as copied:
        planned = results_on_rank(model, model, given, copied)
        try:
            expected = results_on_rank(model, plain, given, copied, saves_elsewhere=True)
        except RuntimeError as error:
            if not forbids_hooks(error):
                raise
            session.check_note = f"not compared with the plain step: {error}"
            return
        found = difference_of_results(expected, planned)
    if found is None:
        session.check_note = "outputs and gradients are the plain step's to the bit"
        return
    if not found.rounding:
        raise UnsupportedError(
            f"the step of {name} by its schedules is not the plain one: {found}",
            hint="nothing was changed; give the loss, with level='block', or train without",
        )
    session.check_note = f"not the plain step to the bit: {found}"
    warn_user(
        f"the step of {name} is the plain one within rounding: {found}",
        RoundingWarning,
    )


def rehearse_loop(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Run the first steps of a loop whose loss is the output of `model`; all state is restored.

    Outside of the model there is nothing then, so that what later steps would measure and plan is
    measured and planned here.
    """
    with _left_as_it_is(model, inputs, keywords, True), untouched(model):
        for _ in range(_NUM_REHEARSED):
            with without_gradients(model):
                given, named = detached_copies((inputs, dict(keywords)))
                run_backward(model(*given, **named))
