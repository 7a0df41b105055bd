"""A model that keeps its class and trains within a budget: rematerialize(..., in_place=True)."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError

from ..autocasts import run_backward
from ..block_level.repeated_forward import untouched
from ..capture.capture import record_step
from ..capture.eager_paths import eager_paths_in_parts
from ..capture.gru_cells import has_gru_cells, whole_gru_gates
from ..capture.recurrent import whole_recurrence
from ..guards.plan_variants import PlainStepWarning, RoundingWarning
from ..guards.reach import changed_methods, methods_of, static_reach
from ..guards.recording import detached_copies, refuse_iterators
from ..guards.state import StateSnapshot
from ..guards.state_walk import HOOKS
from ..ranks import Ranks, ranks_of
from ..ranks.wrappers import inside, is_averaged
from ..step_check import no_room_for
from ..torch_private.dynamo_settings import (
    at_limit,
    break_at_packed_sequences,
    compiled_alone,
    forget_traces,
    graph_breaks,
    last_graph_break,
    left_open,
    recompile_limit,
    trace_settings,
    without_logging,
)
from ..torch_private.global_settings import GlobalSettings
from ..torch_private.grouped_products import grouped_products
from ..torch_private.module_tables import call_as_itself, call_instead, replacement_of
from ..torch_private.pytrees import tree_leaves, tree_map_only
from ..torch_private.sharded_groups import (
    frees_when_it_may,
    gathers_around,
    reducing,
    states,
)
from ..torch_private.storage_refs import DataPlaces
from .backend import compiled_part
from .drop_in_options import DropInOptions
from .environment_reader import EnvironmentReader
from .gathered_session import GatheredSession, refuse_other_communication
from .plain_check import (
    difference,
    difference_of_results,
    frugal_difference,
    made_up_loss,
    results_on_rank,
)
from .session import Session

_WAY_OUT = (
    " (for a budget, give the loss: rematerialize(model, inputs, budget, loss) plans what Dynamo "
    "does not trace by other ways, or says what stands against it)"
)
_NUMBERS = count()
"""Of the functions that Dynamo traces: each has a name of its own."""
_NUM_REHEARSED = 3
"""Steps after which all is planned: one is measured, and the next one begins with the plan."""


def in_place(
    model: nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    options: DropInOptions,
) -> nn.Module:
    """`model` itself, whose training steps stay within the budget from now on.

    Parameters
    ----------
    model
        Where DistributedDataParallel wraps it, the model inside gets the budget.
    inputs, keywords
        Inputs of one call, with which a first step is traced and planned; no trace of that step is
        left. Unless ``options.check`` is ``"never"``, a step with a made-up loss is compared with
        the plain one.

    Raises
    ------
    InfeasibleBudgetError
        The forward and backward of `model` alone do not fit.
    UnsupportedError
        The step by the schedules differs from the plain one.
    SchedsimError
        The model has a budget already, or is compiled in place.
    """
    wrapped, model = model, inside(model)
    before = replacement_of(model)
    if isinstance(before, _BudgetedCall):
        raise SchedsimError("the model has a budget already", hint="schedsim.restore(model)")
    if before is not None:
        raise SchedsimError(
            "the model is compiled in place by model.compile(), which a budget would replace",
            hint="leave that line out, and give compile=True here",
        )
    ranks = ranks_of(model)
    gathers = ranks.bound or any(True for _ in states(model))
    if gathers:
        refuse_other_communication(model)
        session: Session = GatheredSession(model, options, ranks)
    else:
        session = Session(options)
        session.see(model)
    inputs, keywords = with_open_sizes(inputs, keywords, options)
    call = _BudgetedCall(model, session, ranks)
    # A call of the module looks here first; copies and pickles of the module do not contain it.
    call_instead(model, call)
    try:
        if gathers:
            if not model.training:
                model.train()  # ranks say by the mode what they do
            # What hooks change stays: among them are those that gather.
            left = _left_as_it_is(model, inputs, keywords, False, HOOKS)
            with session.rehearsing(), left, untouched(model), reducing(model):
                _run_by_all(model, session, inputs, keywords, ranks)
        else:
            left = _left_as_it_is(model, inputs, keywords, session.checks)
            with _in_training(model), session.rehearsing(), left:
                with untouched(model):
                    _rehearsed(model, inputs, keywords)
                if session.checks and session.parts:
                    session.check_note = _compared(model, session, inputs, keywords)
                    session.plans.small.is_compared = True
    except BaseException:
        restore(model)
        raise
    return wrapped


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
) -> Iterator[None]:
    """Restore what a forward changes besides buffers: counters, globals, generators, parameters.

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
            written = record_step(model, made_up_loss, inputs, keywords).written
    contents = [(tensor, tensor.detach().clone()) for tensor in written]
    held = DataPlaces([*model.parameters(), *model.buffers(), *written])
    try:
        yield
    finally:
        held.restore()
        state.restore()
        with torch.no_grad():
            for tensor, content in contents:
                tensor.detach().copy_(content)


def _rehearsed(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
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


def _compared(
    model: nn.Module, session: Session, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str:
    """A line on how a step by the schedules compares with the plain one."""
    device = torch.device(session.parts[0].device)
    why = no_room_for(session.store_all_bytes, device, 0)
    if why is not None:
        return f"not compared with the plain step: {why}"
    call = replacement_of(model)
    assert call is not None
    rounded = session.options.compile
    # Dynamo no longer traces a function that was called in a mode which looks at every op.
    planned, refused = _noting(call)
    with as_itself(model), untouched(model):
        found = difference(model, model, planned, inputs, keywords, rounded)
    if refused:
        raise refused[0]
    name = type(model).__name__
    if found is None:
        within = "within rounding" if rounded else "to the bit"
        return f"outputs, gradients, buffers and generators are the plain step's {within}"
    if not found.rounding:
        raise UnsupportedError(
            f"the step of {name} by its schedules is not the plain one: {found}",
            hint="nothing was changed; train without, or give the loss: loss=",
        )
    line = f"the step of {name} is the plain one within rounding: {found}"
    warnings.warn(line, RoundingWarning, stacklevel=4)
    return f"not the plain step to the bit: {found}"


def _noting(step: Callable[..., Any]) -> tuple[Callable[..., Any], list[SchedsimError]]:
    """`step`, and a list to which it adds what it refuses: a comparison only says that it fails."""
    refused: list[SchedsimError] = []

    def noted(*inputs: Any, **keywords: Any) -> Any:
        try:
            return step(*inputs, **keywords)
        except SchedsimError as error:
            refused.append(error)
            raise

    return noted, refused


def _run_by_all(
    model: nn.Module,
    session: Session,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    ranks: Ranks,
) -> None:
    """Trace a step that all ranks run together, and compare it with the plain step.

    The ranks run as many steps whatever they find: each is a collective of all.
    """
    name = type(model).__name__
    planned = results_on_rank(model, model, inputs, keywords)
    if not (session.checks and session.parts):
        return
    device = torch.device(session.parts[0].device)
    why = no_room_for(session.store_all_bytes, device, 0)
    reasons = [reason for reason in ranks.gather(why, "compare steps") if reason is not None]
    if reasons:
        session.check_note = f"not compared with the plain step: {reasons[0]}"
        return
    found = difference_of_results(
        results_on_rank(model, call_as_itself(model), inputs, keywords), planned
    )
    if found is None:
        session.check_note = "outputs and gradients are the plain step's to the bit"
        return
    if not found.rounding:
        raise UnsupportedError(
            f"the step of {name} by its schedules is not the plain one: {found}",
            hint="nothing was changed; give the loss, with level='block', or train without",
        )
    session.check_note = f"not the plain step to the bit: {found}"
    warnings.warn(
        f"the step of {name} is the plain one within rounding: {found}",
        RoundingWarning,
        stacklevel=4,
    )


def rehearse_loop(model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Run the first steps of a loop whose loss is the output of `model`; all state is restored.

    Outside of the model there is nothing then, so that what later steps would measure and plan is
    measured and planned here.
    """
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with _left_as_it_is(model, inputs, keywords, True), untouched(model):
            for _ in range(_NUM_REHEARSED):
                for parameter, _gradient in kept:
                    parameter.grad = None
                given, named = detached_copies((inputs, dict(keywords)))
                run_backward(model(*given, **named))
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def restore(model: nn.Module) -> nn.Module:
    """Remove the budget of `model`, and return it as it was before ``in_place=True``."""
    if isinstance(replacement_of(inside(model)), _BudgetedCall):
        call_instead(inside(model), None)
        frees_when_it_may(model)
    return model


def session_in(model: nn.Module) -> Session:
    """The session of a model with a budget.

    Raises
    ------
    SchedsimError
        The model has no budget.
    """
    call = replacement_of(inside(model))
    if not isinstance(call, _BudgetedCall):
        raise SchedsimError(
            "the model has no budget of its own",
            hint="schedsim.rematerialize(model, inputs, budget, in_place=True)",
        )
    return call.session


class _NewGraph(BaseException):
    """Dynamo has a graph that was not compared; a BaseException, because Dynamo lets it pass."""


class _BudgetedCall:
    """The call of a model: by its schedules in training, otherwise the model's own.

    The model alone holds it, and with it all that was planned, so that they are freed together.
    """

    def __init__(self, model: nn.Module, session: Session, ranks: Ranks) -> None:
        self._model: Any = model
        self.session, self._ranks = session, ranks
        self._gave_up = False
        self._is_plain = False
        self._is_due = False
        self._may_trace = False
        self._num_calls = 0

        # Dynamo keeps every backend for good: this one must not keep the model.
        this = weakref.ref(self)
        codes: list[CodeType] = []
        weakref.finalize(self, forget_traces, codes).atexit = False

        def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            call = this()
            assert call is not None  # it runs
            return call._part_of(graph_module, inputs)

        def compiled() -> Any:
            run = _inlined(call_as_itself(model))
            codes.append(run.__code__)
            return compiled_alone(run, backend, session.options.dynamic)

        # Dynamo takes variables of the environment for constants, and does not look at them again.
        self._variables = EnvironmentReader(sorted(static_reach([model]).variables))
        # It does not look again at the methods of classes either.
        self._methods = methods_of(model)
        self._compiled = compiled
        self._runs: dict[tuple[Any, ...], Any] = {}
        self._num_forwards = 0
        # The parts hold the session, and are not to hold the model.
        session.tracing = functools.partial(
            _tracing,
            _has_recurrence_on_cpu(model),
            has_gru_cells(model),
            not session.options.compile,  # Inductor has the paths of compiled steps
        )

    def _part_of(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """A graph that Dynamo has traced, as a part of the step."""
        if not isinstance(self.session, GatheredSession) and gathers_around():
            raise UnsupportedError(
                f"{type(self._model).__name__} was sharded (fully_shard) after it got its budget",
                hint="shard it first, then schedsim.rematerialize(model, ..., in_place=True)",
            )
        if self._compares and not self._may_trace and not self.session.is_rehearsing:
            if self.session.num_forwards == self._num_forwards and not _has_begun():
                raise _NewGraph
            self._is_due = True  # the part of this call that has run must not run again
        self._methods = methods_of(self._model) | self._methods
        if not isinstance(self.session, GatheredSession):
            self.session.see(self._model)  # converted, or with other layers
        return compiled_part(self.session, graph_module, inputs)

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        with self._ranks.leaving(is_averaged=is_averaged(self._model)):
            return self._run(*inputs, **keywords)

    def _run(self, *inputs: Any, **keywords: Any) -> Any:
        model, session = self._model, self.session
        is_compiling = torch.compiler.is_compiling()
        if is_compiling or not self._is_step(inputs, keywords):
            if is_compiling:
                return call_as_itself(model)(*inputs, **keywords)
            session.evaluation_begins()
            found = call_as_itself(model)(*inputs, **keywords)
            session.evaluation_ends(found)
            return found
        session.step_begins((inputs, keywords))
        if self._compares and not session.is_rehearsing:
            every, self._num_calls = session.options.check, self._num_calls + 1
            is_due = self._is_due or not session.plans.small.is_compared
            if is_due or (isinstance(every, int) and self._num_calls % every == 0):
                self._compare(inputs, keywords)
        if not self._is_plain:
            try:
                return self._planned(inputs, keywords)
            except _NewGraph:
                self._compare(inputs, keywords)
        if self._is_plain:
            return call_as_itself(model)(*inputs, **keywords)
        self._may_trace = True  # where no comparison was possible
        try:
            return self._planned(inputs, keywords)
        finally:
            self._may_trace = False

    def _is_step(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
        """Whether a backward may follow, for which a forward keeps tensors: in either mode.

        Of a model that communicates, evaluation runs as it is: ranks say by the mode what they do.
        """
        if not torch.is_grad_enabled() or self._model.training:
            return torch.is_grad_enabled()
        if isinstance(self.session, GatheredSession):
            return False
        given = (t for t in tree_leaves((inputs, dict(keywords))) if isinstance(t, Tensor))
        return any(t.requires_grad for t in (*self._model.parameters(), *given))

    @property
    def _compares(self) -> bool:
        """Whether steps of the loop are compared; several ranks would have to compare together."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self.session.checks and not distributed

    def _planned(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        self._num_forwards = before = self.session.num_forwards
        breaks = graph_breaks()
        with self.session.tracing(), self.session.running():
            replaced = changed_methods(self._methods)
            seen = (GlobalSettings.now(), *self._variables.read(), *replaced)
            run = self._run_for(seen)
            try:
                found = run(*inputs, **keywords)
            except Exception as error:
                inner = getattr(error, "inner_exception", None)  # of Dynamo's own errors
                if isinstance(inner, SchedsimError):
                    raise inner from error
                raise
        is_told = self._gave_up or self.session.says_plain
        if self.session.num_forwards == before and not is_told:
            self._gave_up = True
            warnings.warn(
                f"a step of {type(self._model).__name__} runs as it is, not within the budget: "
                + self._why_untraced(run, last_graph_break(breaks)),
                PlainStepWarning,
                stacklevel=3,
            )
        return found

    def _why_untraced(self, run: Callable[..., Any], broken: str) -> str:
        """Why Dynamo traces no part of a step, and what to do.

        Parameters
        ----------
        broken
            Why it has broken a graph in this step; empty where it has not.
        """
        forwards = {
            code: f"{type(module).__qualname__}.forward"
            for module in self._model.modules()
            if (code := getattr(type(module).forward, "__code__", None)) is not None
        }
        often = [forwards[code] for code in at_limit(forwards, run)]
        if often:
            return (
                f"Dynamo has traced {often[0]} {recompile_limit()} times, for this and perhaps "
                "other models of the class, and traces it no more: torch._dynamo.reset() before "
                "this model gets its budget forgets these traces, and "
                "torch._dynamo.config.recompile_limit allows more"
            )
        if broken:
            return f"Dynamo traces no part of it: {broken.rstrip(' ;')}{_WAY_OUT}"
        return (
            "Dynamo traces no part of it, or no more after too many retracings "
            f"(torch._dynamo.config.recompile_limit){_WAY_OUT}"
        )

    def _run_for(self, variables: tuple[Any, ...]) -> Any:
        """The compiled call for these settings, variables of the environment, replaced methods.

        After as many values as Dynamo would trace anew, it is the call of the model as it is.
        """
        if variables not in self._runs:
            if len(self._runs) >= recompile_limit():
                return call_as_itself(self._model)
            self._runs[variables] = self._compiled()
        return self._runs[variables]

    def _compare(self, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Run a step by the schedules beside the plain step; if they differ, keep to the plain.

        New graphs are traced and planned on the way. Neither step changes any state.
        """
        model, session, self._is_due = self._model, self.session, False
        name, found = type(model).__name__, None
        planned, refused = _noting(lambda *inputs, **keywords: self._planned(inputs, keywords))
        with session.rehearsing(), as_itself(model), untouched(model):
            rounded = session.options.compile
            try:
                found = frugal_difference(model, model, planned, inputs, keywords, rounded)
            except Exception as error:  # the plain step forbids hooks, or a second backward
                text = " ".join(str(error).split())[:200]
                session.note(f"a new graph was not compared: {type(error).__name__}: {text}")
        if refused:
            raise refused[0]
        session.plans.small.is_compared = True
        if found is None:
            session.num_compared += 1
        elif found.rounding:
            line = f"a step of {name} is the plain one within rounding: {found}"
            session.note(line)
            warnings.warn(line, RoundingWarning, stacklevel=3)
        else:
            self._is_plain = True
            line = (
                f"a new graph of {name} is not its plain step: {found}; it runs as it is from now "
                "on, not within the budget"
            )
            session.note(line)
            warnings.warn(line, PlainStepWarning, stacklevel=3)


@contextmanager
def _tracing(has_whole_recurrence: bool, has_gru_cells: bool, is_eager: bool) -> Iterator[None]:
    """Settings for calls in which Dynamo may trace."""
    break_at_packed_sequences()
    with ExitStack() as stack:
        # A hook that is registered later must become part of the step.
        settings: dict[str, Any] = {
            "skip_nnmodule_hook_guards": False,
            "use_numpy_random_stream": True,
            # No graph for each bucket of DistributedDataParallel: gradients come early anyway, and
            # what passes between graphs would be kept.
            "optimize_ddp": False,
        }
        # A message that a library prints once (transformers, about the loss) need not break a
        # graph: the plain step, with which the first step is compared, prints it.
        settings |= without_logging(("warning_once", "info_once"))
        if has_whole_recurrence:
            settings["allow_rnn"] = True
            stack.enter_context(whole_recurrence())
        if has_gru_cells:
            stack.enter_context(whole_gru_gates())
        if is_eager:
            stack.enter_context(eager_paths_in_parts())
            stack.enter_context(grouped_products())
        stack.enter_context(trace_settings(settings))
        yield


def _has_begun() -> bool:
    """Whether Dynamo asks for a graph while code of the call runs: not for its first frame."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__ and code.co_name == "_planned":
            return False
        if code.co_filename == __file__ and "run" in code.co_name:  # unchanged, or resumed
            return True
        frame = frame.f_back
    return False


@contextmanager
def as_itself(model: nn.Module) -> Iterator[None]:
    """Let `model` be called in the block as if it had no budget."""
    call = replacement_of(model)
    call_instead(model, None)
    try:
        yield
    finally:
        call_instead(model, call)


def _has_recurrence_on_cpu(model: nn.Module) -> bool:
    """Whether Dynamo must take recurrent layers as one op each, or would refuse them."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    return bool(layers) and all(p.device.type == "cpu" for m in layers for p in m.parameters())


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in a frame that is not torch's own: Dynamo steps over those."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        return function(*inputs, **keywords)

    # Dynamo keeps traces by code object, and what sizes a function has seen by its name and line:
    # without copies, models would share a trace, and of equal names, the second model of a process
    # would be traced for open sizes at once.
    run.__code__ = run.__code__.replace(co_name=f"run_{next(_NUMBERS)}")
    return run
