"""torch.compile(model, backend="schedsim", options={"budget": "24GiB"})."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from schedsim.errors import SchedsimError, UnsupportedError

from ..capture.eager_paths import EagerAnswers
from ..capture.explicit_masks import explicit_masks_round
from ..compiled.without_backward import compiled_without_backward, needs_no_gradient
from ..guards.plan_variants import PlainStepWarning
from ..ranks.messages import messages_of
from ..torch_private.async_results import arrived_with_gradient, examples_arrived, waits
from ..torch_private.compile_questions import answering
from ..torch_private.dynamo_graphs import (
    as_function,
    checkpointed_writes,
    ends_at_break,
    has_own_functions,
    input_names,
    name_classes,
    replaced_inputs,
    tracing_again,
    unpack_at_once,
)
from ..torch_private.dynamo_settings import (
    break_at_packed_sequences,
    changes_python,
    dynamo_settings,
    guard_modules,
    last_trace,
    recompile_limit,
    was_asked_for,
)
from ..torch_private.fake_tensors import without_memory
from ..torch_private.frame_callbacks import (
    is_for_one_graph,
    options_of,
    when_call_ends,
    when_compiling,
)
from ..torch_private.graph_halves import Strides, compiled_in_halves
from ..torch_private.grouped_products import grouped_products
from ..torch_private.replaced_data import break_at_replaced_data
from ..torch_private.skipped_frames import breaks_so_far, given_to, name_of, skipped_code
from ..torch_private.storage_refs import is_spread_over_ranks
from ..user_warnings import warn_user
from .backend_sessions import BackendSessions
from .failed_forwards import FailedForwards
from .parts.gradient_layouts import GradientLayouts, copied_gradients, watch_backward
from .parts.joint_part import WrittenInputs, joint_part
from .parts.lacking_gradients import LackingGradients
from .parts.own_zeros import OwnZeros
from .parts.shared_memory import SharedMemory
from .parts.sized_parts import SizedParts, has_open_sizes
from .parts.traced_part import TracedPart
from .parts.whole_layers import keep_layers_whole
from .plans.loop_round import THE_ROUND
from .ranks_of_graph import RanksOfGraph
from .session import Session, untrained
from .traced_python import TracedPython, counted_since

_masks: WeakKeyDictionary[Session, list[str]] = WeakKeyDictionary()


def schedsim(
    graph_module: torch.fx.GraphModule,
    inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Dynamo's graph as a function that keeps training steps within a budget.

    Parameters
    ----------
    options
        The fields of `DropInOptions`; ``budget`` is required. Graphs with the same mapping are
        parts of the same steps, and share its budget.
    mode
        That of `torch.compile`, which excludes options, and so a budget: refused.

    Raises
    ------
    SchedsimError
        An option is invalid.
    UnsupportedError
        The graph is of a model whose ranks communicate where no graph shows it.
    """
    try:
        return _planned(graph_module, inputs, options, mode)
    except SchedsimError as error:
        if error.hint:  # Dynamo raises an error of its own, of the message alone
            error.args = (f"{error.message}; {error.hint}",)
        raise


def _planned(
    graph_module: torch.fx.GraphModule,
    inputs: list[Any],
    options: Mapping[str, Any] | None,
    mode: str | None,
) -> Callable[..., Any]:
    """The graph as a function, with the options of one `torch.compile`."""
    if mode is not None:
        raise SchedsimError(
            f"mode={mode!r} is of inductor's own backend, and torch.compile takes no options "
            "beside it, which have the budget",
            hint='leave mode= out: torch.compile(model, backend="schedsim", options={"budget": '
            '"24GiB", "compile": True})',
        )
    guard_modules()
    keep_layers_whole(graph_module)
    _say_last_trace()
    python = TracedPython(graph_module)
    session = SESSIONS.of_present(options)
    calls = {session: _traced(session, graph_module, inputs)}

    def run(*arguments: Any) -> Any:
        python.refuse_changed()
        _frames.num_runs += 1
        present = SESSIONS.of_call(options, session)
        if present not in calls:  # Dynamo runs it for another model of the same code
            examples = without_memory(arguments)
            with present.tracing(), tracing_again(examples):
                calls[present] = _traced(present, graph_module, examples)
        return calls[present](*arguments)

    return run


def _traced(
    session: Session, graph_module: torch.fx.GraphModule, examples: list[Any]
) -> Callable[..., Any]:
    """The graph as a part of the steps of `session`, run by all ranks whose steps these are."""
    _say_masks(session, graph_module)
    together = RanksOfGraph.of(examples, session)
    with together.tracing():
        part = compiled_part(session, graph_module, examples)

    def run(*arguments: Any) -> Any:
        with together.running(arguments):
            return part(*arguments)

    return run


def _say_masks(session: Session, graph_module: torch.fx.GraphModule) -> None:
    """Say that masks were made explicit, once their attention rounds otherwise by that."""
    lines = _masks.setdefault(session, [])
    lines += (line for line in _frames.mask_lines if line not in lines)
    if lines and explicit_masks_round(graph_module):
        for line in lines:
            session.say_rounding(line)


def _say_last_trace() -> None:
    """Say that Dynamo will trace a function no more, and call no backend for what it runs then."""
    code, counted = last_trace(), counted_since()
    if code is not None:
        remedy = "and a tensor in the place of such a number needs none"
        if counted:
            remedy = (
                f"{counted} (of a whole number torch._dynamo.config.allow_unspec_int_on_nn_module "
                "= True is enough)"
            )
        warn_user(
            f"Dynamo has traced {name_of(code)} {recompile_limit()} times, and traces it no more: "
            "where it would have to, as for a number that changes from step to step or from layer "
            "to layer, it runs as it is, not within the budget; "
            "torch._dynamo.config.recompile_limit allows more traces; " + remedy,
            PlainStepWarning,
        )


def _refuse_checkpointed_writes(graph_module: torch.fx.GraphModule) -> None:
    """Refuse checkpointed functions that write: a plain step writes once more in its backward."""
    written = checkpointed_writes(graph_module)
    if written:
        raise UnsupportedError(
            "a function under torch.utils.checkpoint writes in place, as batch statistics "
            f"({written[0]}): a plain step does so twice, and a graph once",
            hint="call it without checkpoint(...), as a schedule recomputes what the budget needs; "
            "such statistics then move once a step, as in a loop without checkpoints",
        )


class _Frames:
    """What Dynamo makes of the functions that it is to compile by this backend.

    Attributes
    ----------
    num_runs
        Calls of graphs so far.
    awaits_first
        Whether no function has come yet, and no line has said so.
    """

    def __init__(self) -> None:
        self.num_runs, self.awaits_first = 0, True
        self._settings = ExitStack()
        self._answers = EagerAnswers()
        self._breaks: dict[str, int] = {}
        self._skipped: list[tuple[CodeType, str]] = []

    @property
    def mask_lines(self) -> list[str]:
        """Lines on the masks of the present function."""
        return self._answers.masks

    @property
    def is_given_up(self) -> bool:
        """Whether Dynamo has given a function up in this call, and traces what that one calls."""
        return bool(self._skipped)

    def begins(self, frame: FrameType) -> None:
        """Dynamo shall trace the plain step: its recurrent layers, its draws, its experts.

        `keep_layers_whole` takes recurrent layers as one op each.
        """
        self._breaks, self.awaits_first = breaks_so_far(), False
        break_at_packed_sequences()
        self._settings, self._answers = ExitStack(), EagerAnswers()
        self._settings.callback(break_at_replaced_data, break_at_replaced_data(True))
        # A graph would draw in the place of NumPy from torch's generator.
        settings: dict[str, Any] = {"use_numpy_random_stream": True}
        # On CUDA recurrent layers are other ops, which would have to be planned as they are.
        if not torch.cuda.is_available():
            settings["allow_rnn"] = True
        self._settings.enter_context(dynamo_settings(settings))
        if not options_of(frame).get("compile"):  # Inductor has the paths of compiled steps
            self._settings.enter_context(answering(self._answers))
            self._settings.enter_context(grouped_products())

    def ends(self, frame: FrameType) -> None:
        """Note a function that Dynamo has given up, or whose graph breaks."""
        self._settings.close()
        known = SESSIONS.known(options_of(frame))
        if known is not None:
            for line in self._answers.others:
                known.say_rounding(line)
        skipped = skipped_code(frame, self._breaks)
        if skipped is None:
            return
        if is_for_one_graph(frame):  # which raises, and runs nothing as it is
            if "use_numpy_random_stream" in skipped[1]:
                warn_user(
                    f"{name_of(skipped[0])} draws by NumPy, which a graph would do by torch's "
                    "generator, with other numbers than the plain step's: so fullgraph=True "
                    "raises; without it, the graph breaks there, and the step is within the budget",
                    PlainStepWarning,
                )
            return
        around = SESSIONS.around(options_of(frame)) if torch.is_grad_enabled() else None
        if around is not None:
            around.traces_around(given_to(frame))
        self._skipped.append(skipped)
        if len(self._skipped) > 1:
            return
        before = self.num_runs

        def tell() -> None:
            found, self._skipped = self._skipped, []
            # Where a graph has run, the rest is code between graphs, which is measured.
            if self.num_runs == before:
                _say_skipped(found)

        if not when_call_ends(tell):
            tell()


def _say_skipped(skipped: Sequence[tuple[CodeType, str]]) -> None:
    """Say that there is no graph of a call to plan."""
    names = list(dict.fromkeys(name_of(code) for code, _ in skipped))
    warn_user(
        f"a call runs as it is, not within the budget: Dynamo does not trace {names[0]}: "
        f"{skipped[0][1]}"
        + (f" (nor {', '.join(names[1:4])})" if names[1:] else "")
        + "; give the loss, which plans by other ways: schedsim.rematerialize(model, inputs, "
        "budget, loss)",
        PlainStepWarning,
    )


def session_of(options: Mapping[str, Any] | None) -> Session:
    """The session of graphs with these options, of one `torch.compile` or of a sharded model."""
    return SESSIONS.of(options)


def compiled_part(
    session: Session, graph_module: torch.fx.GraphModule, inputs: list[Any]
) -> Callable[..., Any]:
    """`graph_module` as a part of the steps of `session`; unchanged, with a note, if not."""
    if any(map(waits, inputs)):
        part = compiled_part(session, graph_module, examples_arrived(graph_module, inputs))
        return lambda *arguments: part(*map(arrived_with_gradient, arguments))
    _refuse_checkpointed_writes(graph_module)
    name_classes(graph_module)
    unpack_at_once(graph_module)
    if any(map(is_spread_over_ranks, inputs)):
        if session.options.compile:
            session.say_uncompiled(
                "tensors of its graphs are spread over ranks, whose messages no compiled group "
                "holds"
            )
        return _part_of_fixed_sizes(session, graph_module, inputs, False)
    if (session.options.compile or session.begins_together) and has_open_sizes(inputs):
        if needs_no_gradient(inputs) and not session.is_distributed:
            call = compiled_without_backward(graph_module, inputs)
            if call is not None:
                return _as_traced(session, graph_module, call, None)

        def trace(
            graph_module: torch.fx.GraphModule, examples: Sequence[Any], compiled: bool
        ) -> Callable[..., Any]:
            compiled &= session.options.compile
            return _part_of_fixed_sizes(session, graph_module, examples, compiled)

        return SizedParts(session, trace, graph_module)
    return _part_of_fixed_sizes(session, graph_module, inputs, session.options.compile)


def _part_of_fixed_sizes(
    session: Session, graph_module: torch.fx.GraphModule, inputs: Sequence[Any], compiled: bool
) -> Callable[..., Any]:
    names, first = input_names(graph_module), list[TracedPart]()
    written = set[int]()
    is_followed = session.has_broken or _frames.is_given_up or ends_at_break(graph_module)
    changing = session.changing(inputs)
    doubted = session.doubted(inputs) if is_followed else ()
    if is_followed or compiled or session.is_distributed:
        unsaved: Sequence[int] = ()
    else:
        unsaved = untrained(inputs)  # the loop may write them before the backward

    def trace(
        examples: Sequence[Any], strides: Mapping[int, Strides] | None
    ) -> tuple[Callable[..., Any], TracedPart | None]:
        made: list[TracedPart] = []

        def prepare(
            joint: torch.fx.GraphModule,
            num_outputs: int,
            fixed: frozenset[int],
            places: Sequence[int],
        ) -> TracedPart:
            found = joint_part(
                joint, num_outputs, fixed, names, WrittenInputs(changing, doubted, unsaved), places
            )
            if session.is_distributed and torch.distributed.get_world_size() > 1:
                session.agree_on(messages_of(found.program))
            name = f"part{len(session.parts)}" if session.parts else "step"
            lacking = [i for i, its in (strides or {}).items() if its is None]
            part = TracedPart(session, found, name, compiled=compiled, lacking=lacking)
            part.is_followed = is_followed
            if first:
                part.share_buffers(first[0])
            first.append(part)
            session.add(part)
            made.append(part)
            return part

        call = compiled_in_halves(
            graph_module,
            examples,
            prepare,
            strides,
            keeps_draws=not compiled,
            sees_written=written.update,
        )
        return call, made[-1] if made else None

    found: Callable[..., Any]
    try:
        replaced = replaced_inputs(graph_module)
        if replaced:
            raise UnsupportedError(
                f"it gives {replaced[0]} other data (.data = ...), which no graph here does; write "
                "it in place, as .data.copy_(...)"
            )
        call, part = trace(inputs, {} if session.follows_gradients else None)
    except UnsupportedError as error:
        session.says_plain = True
        warn_user(
            f"a part of the step runs as it is, not within the budget: {error.message}",
            PlainStepWarning,
        )
        plain: Callable[..., Any] = graph_module.forward
        return plain
    if part is None and compiled and not session.is_distributed:
        found = compiled_without_backward(graph_module, inputs) or call
    elif part is None or not part.has_known_gradients:
        found = _of_first_order(session, call, part)
    elif session.follows_gradients:
        found = GradientLayouts(session, trace, inputs, call, part)
    elif session.options.compile and not session.is_distributed:
        if has_own_functions(graph_module):
            part.own_zeros = OwnZeros(session, graph_module, inputs)
        found = LackingGradients(session, call, part)
    else:
        found = _of_first_order(session, call, part)
    if part is None:
        found = _noted(session, found)
    return _as_traced(session, graph_module, found, written)


def _as_traced(
    session: Session,
    graph_module: torch.fx.GraphModule,
    call: Callable[..., Any],
    written: Collection[int] | None,
) -> Callable[..., Any]:
    """`call`, which is a graph as it was traced, where that holds; else the graph as it is.

    Parameters
    ----------
    written
        Places of the arguments that it writes; ``None`` where that is not known.
    """
    plain, names = as_function(graph_module), input_names(graph_module)
    found: Callable[..., Any] = FailedForwards(session, call, plain, changes=changes_python())
    if written is not None and not written:
        return found

    def say(one: int, other: int) -> None:
        session.say_plain(
            f"{names[one]} and {names[other]}, of which a forward writes one, share their memory "
            "otherwise than where this forward was traced: it runs as it is, not within the "
            "budget; give each a memory of its own, as by .clone()"
        )

    return SharedMemory(found, plain, written, say)


def _noted(session: Session, call: Callable[..., Any]) -> Callable[..., Any]:
    """The `call` of a graph without a backward: the loop may hold its outputs in later steps."""

    def run(*arguments: Any) -> Any:
        found = call(*arguments)
        session.note_outputs(found)
        return found

    return run


def _of_first_order(
    session: Session, call: Callable[..., Any], part: TracedPart | None
) -> Callable[..., Any]:
    """`call`, whose gradients say so where they are derived themselves.

    Its backward says so where it runs in another autocast than the traced one, and where it gets
    gradients in other strides. Gradients that are averaged over ranks come as they are made.
    """

    def run(*arguments: Any) -> Any:
        if part is not None:
            part.early = early = part.gives_early(arguments)
            arguments = arguments if early is None else tuple(early.behind_nodes(arguments))
        found = call(*arguments)
        if part is None:
            watch_backward(found, lambda _given: None)
            return found
        begins, are_copied = part.watch_buffers(), copied_gradients(found)
        num_outputs = len(found)  # the node must not hold its own outputs

        def backward_begins(given: Sequence[Any]) -> None:
            begins()
            outputs = [it.output for it in part.given]
            if len(given) == num_outputs and -1 not in outputs:
                lacking = (i for i, output in enumerate(outputs) if given[output] is None)
                part.replaced_by_zeros = frozenset(lacking)
            if not session.is_rehearsing and are_copied(given):
                session.say_rounding(
                    f"gradients come to {part.name} in other strides than its outputs have, and "
                    "are copied, as its sizes are open: steps are the plain ones within rounding "
                    "(dynamic=False follows the strides)"
                )

        watch_backward(found, backward_begins)
        return found

    return run


def _say_uncalled(*_: Any) -> None:
    """Say that an optimizer steps, and nothing was called yet that torch.compile gave."""
    if _frames.awaits_first and was_asked_for("schedsim"):
        _frames.awaits_first = False
        warn_user(
            "an optimizer steps, and nothing was called that torch.compile gave for the backend "
            "schedsim: no step is within the budget. Of a loop that calls methods of a model "
            "(encode, decode) or its parts, compile these: model.encode = torch.compile("
            'model.encode, backend="schedsim", options=options), with one `options` for all',
            PlainStepWarning,
        )


SESSIONS = BackendSessions(schedsim)
THE_ROUND.coming.append(SESSIONS.is_coming)
_frames = _Frames()
register_optimizer_step_post_hook(_say_uncalled)
when_compiling(schedsim, _frames.begins, _frames.ends)
