"""Dynamo's settings for a piece of work, and what it counts of graphs that it broke."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from types import CodeType, MappingProxyType
from typing import Any

import torch
import torch._dynamo as dynamo
from torch._C._dynamo import eval_frame
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import convert_frame, trace_rules
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.backends import registry
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import counters, get_traced_code
from torch._dynamo.variables import SkipFunctionVariable
from torch.nn.utils.rnn import pad_packed_sequence


@contextmanager
def dynamo_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Dynamo's own settings for what is compiled in the block, and only for that."""
    known = {name: value for name, value in settings.items() if hasattr(dynamo.config, name)}
    _log_no_functions()
    with dynamo.config.patch(known):
        yield


@cache
def _log_no_functions() -> None:
    """Keep functions that are settings out of what torch writes down of a compilation.

    torch before 2.13 sorts and writes down the functions of `without_logging`, fails, and tells of
    that by a traceback for every compilation; later it leaves them out.
    """
    asked = getattr(dynamo_utils, "_get_dynamo_config_for_logging", None)
    if asked is None:
        return

    @wraps(asked)
    def without_functions() -> Any:
        with dynamo.config.patch(ignore_logging_functions=set()):
            return asked()

    dynamo_utils._get_dynamo_config_for_logging = without_functions


_wanted: ContextVar[dict[str, Any] | None] = ContextVar("settings of traces", default=None)


@contextmanager
def trace_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Like `dynamo_settings`, but set only while Dynamo traces: most calls in the block do not.

    To set them and put them back takes 0.2 ms, before a step's first kernel.
    """
    if not _sets_where_it_traces():
        with dynamo_settings(settings):
            yield
        return
    token = _wanted.set(settings)
    try:
        yield
    finally:
        _wanted.reset(token)


@cache
def _sets_where_it_traces() -> bool:
    """Let Dynamo set what is wanted where it is called for a frame; whether that can be done."""
    kind = getattr(convert_frame, "CatchErrorsWrapper", None)
    if kind is None or "__call__" not in vars(kind):
        return False
    convert = kind.__call__

    @wraps(convert)
    def with_settings(*arguments: Any, **keywords: Any) -> Any:
        settings = _wanted.get()
        if settings is None:
            return convert(*arguments, **keywords)
        with dynamo_settings(settings):
            return convert(*arguments, **keywords)

    kind.__call__ = with_settings
    return True


def break_at_packed_sequences() -> None:
    """Let Dynamo break its graph at ``pad_packed_sequence``, as it does by itself since torch 2.13.

    Before, it traces the function, and fails at a kernel that has no form for fake tensors.
    """
    trace_rules.get_torch_obj_rule_map().setdefault(pad_packed_sequence, SkipFunctionVariable)


def without_logging(names: Iterable[str]) -> dict[str, Any]:
    """Settings by which Dynamo leaves out calls of these methods of loggers.

    Without them each such call breaks the graph. Libraries add methods to ``logging.Logger``, so
    that a name may be missing.
    """
    methods = {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}
    methods |= dynamo.config.ignore_logging_functions
    return {"ignore_logging_functions": methods}


def graph_breaks() -> Mapping[str, int]:
    """How often Dynamo has broken a graph, or stopped, so far, by its reason."""
    return dict(counters["graph_break"])


def last_graph_break(before: Mapping[str, int]) -> str:
    """A reason counted since `before`, the newest, in a line; empty where there is none."""
    now = counters["graph_break"].items()
    found = [reason for reason, count in now if count > before.get(reason, 0)]
    lines = [line.strip() for line in found[-1].splitlines() if line.strip()] if found else []
    named = [line for line in lines if line.startswith(("Explanation:", "Developer debug"))]
    return "; ".join([*lines[:1], *(line.partition(":")[2].strip() for line in named)])[:300]


def was_asked_for(backend: str) -> bool:
    """Whether `torch.compile` was called for the backend of this name, in this process."""
    return backend in registry._COMPILER_FNS


def recompile_limit() -> int:
    """How many traces of one function Dynamo keeps before it runs the function as it is."""
    return int(dynamo.config.recompile_limit)


def compiled_alone(
    function: Callable[..., Any], backend: Callable[..., Any] | str, dynamic: bool | None
) -> Callable[..., Any]:
    """`torch.compile` whose traces count against the limit by themselves, where torch can do so.

    Behind a graph break Dynamo traces the code of a class's own methods. Where it cannot (before
    2.13), the traces of all models of the class count together.
    """
    alone = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    more: dict[str, Any] = {"isolate_recompiles": True} if alone else {}
    return torch.compile(function, backend=backend, dynamic=dynamic, **more)


def at_limit(codes: Iterable[CodeType], compiled: Callable[..., Any]) -> list[CodeType]:
    """Those of `codes` which Dynamo traces no more for `compiled`, since it has done so often."""
    region = getattr(compiled, "_isolate_recompiles_id", -1)

    def num_traces(code: CodeType) -> int:
        if region < 0:
            return len(eval_frame._debug_get_cache_entry_list(code))
        return len(eval_frame._get_cache_entries_for_region(code, region))

    return [code for code in codes if num_traces(code) >= recompile_limit()]


def last_trace() -> CodeType | None:
    """The code of which Dynamo makes a graph now, if it is the last: others would be too many."""
    code: CodeType = InstructionTranslator.current_tx().f_code
    num_traces = len(eval_frame._debug_get_cache_entry_list(code))
    return code if num_traces + 1 >= recompile_limit() else None


def traced_code() -> list[CodeType]:
    """The code of which Dynamo has made the graph that a backend is called with."""
    return list(get_traced_code() or ())


def traced_scopes() -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables and the globals of the frame of which Dynamo makes a graph now."""
    output = InstructionTranslator.current_tx().output
    return getattr(output, "local_scope", {}), getattr(output, "global_scope", {})


def changes_python() -> bool:
    """Whether the code of which Dynamo makes a graph now changes what Python holds, behind it."""
    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:  # none is made now
        return False
    effects = output.side_effects
    known = (it for it in effects.id_to_variable.values() if not _is_made_there(it))
    return any(map(effects.is_modified, known))


def _is_made_there(variable: Any) -> bool:
    """Whether the code that Dynamo traces has made what `variable` stands for."""
    return type(variable.mutation_type).__name__.endswith("MutationNew")


def module_classes(graph_module: torch.fx.GraphModule) -> list[type]:
    """The classes of the modules in whose forwards nodes of a graph stand, with their bases."""
    found: dict[type, None] = {}
    for node in graph_module.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            if isinstance(kind, type):
                found.update(dict.fromkeys(kind.__mro__))
    return list(found)


GUARDS: Mapping[str, Any] = MappingProxyType(
    {
        "skip_nnmodule_hook_guards": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
    }
)
"""Settings by which graphs look at what they skip by default.

These are hooks that modules have got; and, in torch 2.11, parameters of modules in which
nothing was replaced: a layer that is trained from some step on got no gradients.
"""


def guard_modules() -> None:
    """Have all later graphs look at modules as `GUARDS` say."""
    for name, value in GUARDS.items():
        if hasattr(dynamo.config, name):
            setattr(dynamo.config, name, value)


def forget_traces(codes: Iterable[CodeType]) -> None:
    """Drop what Dynamo holds of `codes`, which nothing calls any more: their graphs and plans.

    Dynamo maps the code that it makes to the code that it read, and that holds the first.
    """
    for code in codes:
        reset_code(code)


def left_open(tensor: torch.Tensor, dimensions: Iterable[int]) -> torch.Tensor:
    """`tensor` under another name, of which traced code leaves these sizes open, where it can."""
    if not tensor.is_leaf or type(tensor) is not torch.Tensor:
        return tensor
    found = tensor.detach().requires_grad_(tensor.requires_grad)
    for dimension in dimensions:
        dynamo.maybe_mark_dynamic(found, dimension % tensor.ndim)
    return found
