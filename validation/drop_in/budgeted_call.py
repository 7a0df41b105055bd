"""The call of a model in place: by its schedules in training, otherwise the model's own."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.errors import SchedsimError, UnsupportedError
from schedsim.units import format_bytes

from ..block_level.repeated_forward import untouched
from ..guards.plan_variants import PlainStepWarning, RoundingWarning
from ..guards.reach import changed_methods, methods_of, static_reach
from ..measure.storage import storage_bytes
from ..ranks import Ranks
from ..ranks.wrappers import is_averaged
from ..torch_private.dynamo_settings import (
    at_limit,
    compiled_alone,
    forget_traces,
    graph_breaks,
    last_graph_break,
    recompile_limit,
)
from ..torch_private.function_transforms import in_transform, is_traced
from ..torch_private.global_settings import GlobalSettings
from ..torch_private.module_tables import as_itself, attributes_of, call_as_itself
from ..torch_private.pytrees import tree_leaves
from ..torch_private.sharded_roots import running_root
from ..user_warnings import warn_user
from ..whole_step.step_check import PlainMemory
from .backend import compiled_part
from .checks.plain_check import difference
from .environment_reader import EnvironmentReader
from .failed_forwards import GeneratorsBefore, run_up_to
from .gathered_session import GatheredSession
from .session import Session
from .tracing import Tracing, inlined, is_inlined

_WAY_OUT = (
    " (for a budget, give the loss: rematerialize(model, inputs, budget, loss) plans what Dynamo "
    "does not trace by other ways, or says what stands against it)"
)


class _NewGraph(BaseException):
    """Dynamo has a graph that was not compared; a BaseException, because Dynamo lets it pass."""


class BudgetedCall:
    """The call of a model: by its schedules in training, otherwise the model's own.

    The model alone holds it, and with it all that was planned, so that they are freed together.
    """

    def __init__(self, model: nn.Module, session: Session, ranks: Ranks) -> None:
        self._model: Any = model
        self.session, self._ranks = session, ranks
        self._gave_up = self._says_transformed = self._says_aside = False
        self._is_plain = False
        self._is_due = False
        self._may_trace = False
        self._num_calls = 0

        # Dynamo keeps every backend for good: this one must not keep the model.
        this = weakref.ref(self)
        self._codes = codes = list[CodeType]()
        weakref.finalize(self, forget_traces, codes).atexit = False

        def backend(graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            call = this()
            assert call is not None  # it runs
            return call._part_of(graph_module, inputs)

        def compiled() -> Any:
            run = inlined(call_as_itself(model))
            codes.append(run.__code__)
            return compiled_alone(run, backend, session.options.dynamic)

        # Dynamo takes variables of the environment for constants, and does not look at them again.
        self._variables = EnvironmentReader(sorted(static_reach([model]).variables))
        # It does not look again at the methods of classes either.
        self._methods = methods_of(model)
        self._compiled = compiled
        self._runs: dict[tuple[Any, ...], Any] = {}
        self._num_forwards = 0
        self._generators = GeneratorsBefore()
        # The parts hold the session, and are not to hold the model.
        session.tracing = self._tracing = Tracing(model, is_eager=not session.options.compile)

    def _part_of(self, graph_module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """A graph that Dynamo has traced, as a part of the step."""
        if not isinstance(self.session, GatheredSession) and running_root() is not None:
            raise UnsupportedError(
                f"{type(self._model).__name__} was sharded (fully_shard) after it got its budget",
                hint="shard it first, then schedsim.rematerialize(model, ..., in_place=True)",
            )
        if not self.session.is_distributed:
            self._tracing.sees(self._model)
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
        traced = is_traced()
        if traced or in_transform():
            if not traced:
                self._say_transformed()
            return call_as_itself(model)(*inputs, **keywords)
        if not self._is_step(inputs, keywords):
            session.evaluation_begins()
            with session.measuring_evaluation((inputs, keywords)):
                found = call_as_itself(model)(*inputs, **keywords)
            session.evaluation_ends(found)
            return found
        session.step_begins((inputs, keywords))
        if self._compares and not session.is_rehearsing:
            every, self._num_calls = session.options.check, self._num_calls + 1
            is_due = self._is_due or not session.is_compared
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

    def _plain_memory(self) -> PlainMemory:
        """The memory of the plain step; the report has the line that says so where it is taken."""
        session = self.session

        def say(line: str) -> None:
            session.note(line)
            warn_user(line, PlainStepWarning)

        parts = session.parts
        device = torch.device(parts[0].device if parts else "cpu")
        return PlainMemory(lambda: session.store_all_bytes, device, say)

    def _say_transformed(self) -> None:
        """Say once that a call within a transform has no graph, no schedule and no budget."""
        if not self._says_transformed:
            self._says_transformed = True
            warn_user(
                f"a forward of {type(self._model).__name__} within a transform of torch.func "
                "(grad, vmap, ...) or a level of forward-mode differentiation runs as it is, not "
                "within the budget",
                PlainStepWarning,
            )

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
                found = self._run_or_undo(run, inputs, keywords)
            except Exception as error:
                inner = getattr(error, "inner_exception", None)  # of Dynamo's own errors
                if isinstance(inner, SchedsimError):
                    raise inner from error
                raise
        is_told = self._gave_up or self.session.says_plain
        if self.session.num_forwards == before and not is_told and _needs_gradient(found):
            self._gave_up = True
            warn_user(
                f"a step of {type(self._model).__name__} runs as it is, not within the budget: "
                + self._why_untraced(run, last_graph_break(breaks)),
                PlainStepWarning,
            )
        return found

    def _run_or_undo(
        self, run: Callable[..., Any], inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """The call by schedules; where it raises, what the plain call has done by then is done."""
        session = self.session
        if session.is_rehearsing or isinstance(session, GatheredSession):
            return run(*inputs, **keywords)
        restore = self._generators.now(dict.fromkeys(part.device for part in session.parts))
        session.calls_again, session.is_undone = True, False
        try:
            return run(*inputs, **keywords)
        except Exception as error:
            if not session.is_undone:
                raise
            restore()
            plain = run_up_to(error, call_as_itself(self._model), inputs, keywords)
            if plain is None:
                raise
            raise plain from None
        finally:
            session.calls_again = session.is_undone = False

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
            if not isinstance(module, torch.jit.ScriptModule)  # whose forward is found at objects
            and (code := getattr(type(module).forward, "__code__", None)) is not None
        }
        grown = self._tracing.grown(self._model)
        if grown:
            return (
                f"Dynamo traces a forward anew for each length of a list, and {grown}: "
                "append in the loop, or write into a buffer of a fixed size"
            )
        counted = self._tracing.counted(self._model)
        if counted and at_limit([*forwards, *self._codes], run):
            return (
                f"Dynamo has traced a forward {recompile_limit()} times, as for each value of a "
                f"number that it changes, and {counted}"
            )
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
        gradients = [it.grad for it in model.parameters() if it.grad is not None]
        aside_bytes = storage_bytes([*gradients, *attributes_of(model)])
        del gradients

        def planned(*inputs: Any, **keywords: Any) -> Any:
            return self._planned(inputs, keywords)

        with session.rehearsing(), as_itself(model), untouched(model):
            rounded, given = session.options.compile, (inputs, keywords)
            try:
                found = difference(model, model, planned, given, rounded, self._plain_memory())
            except Exception as error:  # the plain step has no room, or forbids a second backward
                text = " ".join(str(error).split())[:200]
                session.note(f"a new graph was not compared: {type(error).__name__}: {text}")
        if found is not None and found.refusal is not None:
            raise found.refusal
        session.note_compared()
        self._tell_set_aside(aside_bytes)
        if found is None:
            session.num_compared += 1
        elif found.rounding:
            line = f"a step of {name} is the plain one within rounding: {found}"
            session.note(line)
            warn_user(line, RoundingWarning)
        else:
            self._is_plain = True
            what = "could not be run, or planned" if found.is_error else "is not its plain step"
            line = (
                f"a new graph of {name} {what}: {found}; the model runs as it is from now on, not "
                "within the budget"
            )
            session.note(line)
            warn_user(line, PlainStepWarning)

    def _tell_set_aside(self, aside_bytes: int) -> None:
        """Say that a comparison, beside such gradients, may have exceeded the budget; once.

        They are there where a loop zeroes them after its forward, or never, or where modules make
        weights in each forward. The step that is compared makes its own, and these wait meanwhile.
        """
        budget, peak = self.session.budget_bytes, self.session.peak_bytes
        if not aside_bytes or not budget or not peak or self._says_aside:
            return
        over = peak + aside_bytes - budget
        if over <= 0:
            return
        self._says_aside = True
        line = (
            f"a new graph of {type(self._model).__name__} was compared with its plain step beside "
            f"{format_bytes(aside_bytes)} of gradients, or of tensors that modules have as "
            "attributes, that were there: this may have exceeded the budget by up to "
            f"{format_bytes(over)}; optimizer.zero_grad() in front of the forward frees gradients, "
            'and check="never" compares nothing'
        )
        self.session.note(line)
        warn_user(line, PlainStepWarning)


def _needs_gradient(outputs: Any) -> bool:
    """Whether a backward may follow: not where all that a forward has read is frozen."""
    return any(isinstance(it, Tensor) and it.requires_grad for it in tree_leaves(outputs))


def _has_begun() -> bool:
    """Whether Dynamo asks for a graph while code of the call runs: not for its first frame."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__ and code.co_name == "_planned":
            return False
        if is_inlined(code):
            return True
        frame = frame.f_back
    return False
