"""Graphs of Dynamo: made, with what their inputs are, and with what Python unpacked."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .dynamo_settings import dynamo_settings, without_logging
from .fake_tensors import fake_mode
from .quiet_traces import quiet_loggers


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside of what ``torch.compile`` returned; any other as it is."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def dynamo_graph(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> nn.Module:
    """`module` with its Python traced away by Dynamo, as one graph, ready for `export_joint`."""
    import torch._dynamo as dynamo
    from torch._dynamo import functional_export

    entry = getattr(functional_export, "dynamo_graph_capture_for_export", None)
    entry = entry or functional_export._dynamo_graph_capture_for_export
    # Libraries warn through a logger inside forward; that is no reason to give a graph up.
    names = ("debug", "info", "warning", "warning_once", "info_once", "warning_advice", "error")
    with (
        mode,
        warnings.catch_warnings(),
        quiet_loggers(),
        dynamo_settings(without_logging(names)),
    ):
        warnings.simplefilter("ignore")
        dynamo.reset()
        graph: nn.Module = entry(module)(*inputs)
    return graph


def ends_at_break(graph_module: torch.fx.GraphModule) -> bool:
    """Whether Dynamo's graph ends where its trace breaks, so that code and graphs may follow."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    return bool(getattr(reason, "graph_break", False))


def has_own_functions(graph_module: torch.fx.GraphModule) -> bool:
    """Whether Dynamo's graph calls a `torch.autograd.Function`, or code that is not torch's.

    Of these, autograd calls a backward where the gradient of any of their outputs comes.
    """
    for module in graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op != "call_function":
                continue
            root = (getattr(node.target, "__module__", None) or "torch").partition(".")[0]
            is_function = "autograd_function" in getattr(node.target, "__name__", "")
            if is_function or root not in _NOT_OWN:
                return True
    return False


_NOT_OWN = frozenset({"torch", "_operator", "operator", "builtins", "math", "schedsim"})


def unpack_at_once(graph_module: torch.fx.GraphModule) -> int:
    """Let one ``unbind`` make what Python unpacks or iterates over, as in eager mode.

    Dynamo writes ``q, k, v = x`` as three items, each of whose gradients is as large as all of
    ``x``; eager Python calls ``unbind``, whose gradient is one stack. The items of one unpacking
    have one place in the source, those of ``x[0], x[1]`` have two. (Before 2.13, places are whole
    lines; an unbind of these items has the same gradient, as they share no entry.) Returns how many
    it found.
    """
    graph, found = graph_module.graph, 0
    nodes = list(graph.nodes)
    for i, first in enumerate(nodes):
        whole = first.args[0] if first.op == "call_function" and first.args else None
        if first.target is not operator.getitem or not isinstance(whole, torch.fx.Node):
            continue
        value = whole.meta.get("example_value")
        if first.args[1] != 0 or not isinstance(value, torch.Tensor) or value.dim() == 0:
            continue
        place, num = first.meta.get("stack_trace"), value.shape[0]
        if not isinstance(num, int) or num < 2 or not place:
            continue
        items = nodes[i : i + num]
        wanted = [(operator.getitem, (whole, k), place) for k in range(num)]
        if [(it.target, it.args, it.meta.get("stack_trace")) for it in items] != wanted:
            continue
        with graph.inserting_before(first):
            made = graph.call_function(torch.unbind, (whole,))
        made.meta = {**first.meta, "example_value": tuple(it.meta["example_value"] for it in items)}
        for k, item in enumerate(items):
            item.args = (made, k)
        found += 1
    if found:
        graph_module.recompile()
    return found


def checkpointed_writes(graph_module: torch.fx.GraphModule) -> list[str]:
    """What functions under ``torch.utils.checkpoint`` write in place, as batch statistics.

    The plain step runs such a function twice, and a graph once.
    """
    found = []
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            body = getattr(graph_module, node.args[0].target)
            given = [n for n in body.graph.nodes if n.op == "placeholder"]
            written = [it for n in body.graph.nodes for it in _written_by(n) if it in given]
            found += [str(node.args[1 + given.index(it)]) for it in written]
    return found


def _written_by(node: torch.fx.Node) -> tuple[Any, ...]:
    """What `node`, of a graph of Dynamo, writes in place."""
    if node.target is torch.nn.functional.batch_norm:
        return tuple(node.args[1:3])
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    is_written = (name.endswith("_") and not name.endswith("__")) or node.target in _IN_PLACE
    return node.args[:1] if is_written else ()


_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem)


def name_classes(graph_module: torch.fx.GraphModule) -> None:
    """Let the nodes of a graph name the classes of modules by text, as exported graphs do.

    Dynamo keeps graphs for good. ``torch.nn.utils.parametrize`` gives a module a class of its own,
    whose property holds the module: a graph that holds the class keeps a model that is deleted.
    """
    for module in graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            stack, sources = (node.meta.get(key) for key in ("nn_module_stack", "source_fn_stack"))
            if stack:
                named = {key: (path, _named(kind)) for key, (path, kind) in stack.items()}
                node.meta["nn_module_stack"] = named
            if sources:
                node.meta["source_fn_stack"] = [(name, _named(it)) for name, it in sources]


def _named(kind: Any) -> Any:
    """The name of a class; anything else as it is."""
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind


def as_function(graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """The code of a graph, which prints nothing where it raises, as a call of the module does."""

    graph: Any = graph_module

    def run(*arguments: Any) -> Any:
        if hasattr(graph, "real_recompile"):  # Dynamo's have no code until they are called
            graph.real_recompile()
        return type(graph).forward(graph, *arguments)

    return run


def numbers_in_tensors(graph_module: torch.fx.GraphModule) -> list[int]:
    """Positions of inputs that are Python's numbers: Dynamo hands them over as tensors.

    It does so with floats, where sizes are open; the graph reads them by ``item``.
    """
    found = []
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(inputs):
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.dim() == 0 and node.users:
            asked = all((it.op, it.target) == ("call_method", "item") for it in node.users)
            if asked and example.is_floating_point() and not example.requires_grad:
                found.append(position)
    return found


def with_numbers(
    graph_module: torch.fx.GraphModule, numbers: Mapping[int, float]
) -> torch.fx.GraphModule:
    """A copy in which the inputs at these positions are numbers that are known."""
    if not numbers:
        return graph_module
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    known = {inputs[position]: number for position, number in numbers.items()}
    graph, copied = torch.fx.Graph(), dict[torch.fx.Node, Any]()
    for node in graph_module.graph.nodes:
        asked: Any = node.args[0] if node.args else None
        if node.op == "call_method" and node.target == "item" and asked in known:
            copied[node] = known[asked]
            continue
        made: Any = graph.node_copy(node, lambda it: copied[it])
        copied[node] = made
        source = getattr(node, "_dynamo_source", None)
        if source is not None:
            made._dynamo_source = source
    return torch.fx.GraphModule(graph_module, graph)


@contextlib.contextmanager
def tracing_again(examples: Sequence[Any]) -> Iterator[None]:
    """A context of a trace as Dynamo would open it, for the fakes of `without_memory`."""
    from torch._guards import TracingContext, tracing

    fakes = [it for it in examples if isinstance(it, FakeTensor)]
    with tracing(TracingContext(fakes[0].fake_mode if fakes else fake_mode())):
        yield


def input_names(graph_module: torch.fx.GraphModule) -> list[str]:
    """Where Dynamo says that the inputs of its graph come from, like ``L['self'].fc.weight``."""
    names = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node, "_dynamo_source", None)
            name = getattr(source, "name", None)
            names.append(str(name() if callable(name) else name or node.name))
    return names


def replaced_inputs(graph_module: torch.fx.GraphModule) -> list[str]:
    """Names of the inputs that a graph of Dynamo gives other data (``tensor.data = other``)."""
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    names = dict(zip(nodes, input_names(graph_module), strict=True))
    # From torch 2.14 on it is an op of its own, which torch 2.13 lacks.
    setters = [torch.Tensor.set_, getattr(torch.ops.aten, "shallow_copy_data_", None)]
    given = [node.args[0] for node in graph_module.graph.nodes if node.target in setters]
    return [names[node] for node in given if node in names]
