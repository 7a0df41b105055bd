"""Joint graphs of forward and backward, what their nodes stand for, and fake tensors."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..autocasts import backward_autocast
from .dynamo_settings import dynamo_settings, without_logging
from .eager_kernels import eager_kernels
from .kernel_layouts import true_layouts
from .op_modes import without_modes


class Role(NamedTuple):
    """The role of a graph input or output: ``kind``, and its name or position in the model.

    Inputs: parameter, buffer, input, tangent, other. Outputs: output, mutation, gradient, other.
    """

    kind: str
    key: str | int
    of: str = ""


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have sizes and no memory; real constants are let in."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def is_symbolic(value: object) -> bool:
    """Whether `value` is a number that a trace left open."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def size_text(size: torch.SymInt) -> str | None:
    """Python source for `size` over the names of open sizes; ``None`` where data decide it."""
    return _expression_text(size.node.expr)


class KnownSize(NamedTuple):
    """What a trace knows of an open size.

    Attributes
    ----------
    traced
        Its value during the trace.
    told
        The largest value that the caller named (`mark_dynamic(max=...)`); otherwise ``None``.
    most
        The largest value that the graph takes, named or found (positions that a table has);
        ``None`` where it has none.
    """

    traced: int
    told: int | None
    most: int | None


def known_of(size: torch.SymInt) -> KnownSize:
    """What the trace knows of `size`, a size that it left open."""
    symbol, env = size.node.expr, size.node.shape_env
    traced = int(size.node.hint)
    found = env.var_to_range.get(symbol)
    if found is None or not found.upper.is_finite or found.upper >= 2**31:
        return KnownSize(traced, None, None)
    most = int(found.upper)
    # Torch keeps one range for both: what it found itself is also a guard.
    is_guard = any(
        guard.expr.free_symbols == {symbol} and not guard.expr.subs(symbol, most + 1)
        for guard in env.guards
    )
    return KnownSize(traced, None if is_guard else most, most)


@functools.cache
def _expression_text(expression: Any) -> str | None:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.utils._sympy.printers import PythonPrinter

    if free_unbacked_symbols(expression):
        return None
    text: str = PythonPrinter().doprint(expression.expand())
    return text


def is_fake(value: object) -> bool:
    """Whether `value` is a tensor without memory of its own."""
    return isinstance(value, FakeTensor)


def is_traced(value: object) -> bool:
    """Whether `value` is a tensor of a trace, and not one that a kernel could take."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FakeTensor | FunctionalTensor)


def sequence_number() -> int:
    """The number that the next autograd node will carry."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def current_node_number() -> int:
    """The number of the autograd node whose backward runs now; -1 where none does."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


def function_of(context: object) -> type | None:
    """The class of the autograd function whose forward has `context` as its first argument."""
    found: type | None = getattr(context, "_forward_cls", None)
    return found


def export_joint(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """Forward and backward of `module` on fake `inputs` as one functional graph."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    with contextlib.ExitStack() as stack:
        stack.enter_context(_exporting(mode))
        stack.enter_context(_draws_kept())
        stack.enter_context(_backward_as_it_runs())
        joint = aot_export_joint_with_descriptors(stack, module, inputs)
        graph_module: torch.fx.GraphModule = joint.graph_module
    return graph_module


class CutGraph(NamedTuple):
    """A joint graph cut in two, as torch.compile runs it.

    Attributes
    ----------
    module
        What the parameters and buffers in the roles are of.
    joint, forward, backward
        Nodes keep the names that they have in `joint`.
    num_outputs
        Of `forward`, before what it keeps for `backward`.
    """

    module: nn.Module
    joint: torch.fx.GraphModule
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    num_outputs: int


def inductor_halves(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> CutGraph:
    """`module` on fake `inputs`, read by Dynamo, decomposed and cut as inductor has it cut."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    graph = dynamo_graph(module, inputs, mode)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_exporting(mode))
        table = select_decomp_table()
        exported = aot_export_joint_with_descriptors(stack, graph, inputs, decompositions=table)
        joint: torch.fx.GraphModule = exported.graph_module
        roles = [role for _, role in output_roles(joint.graph)]
        num_outputs = sum(role.kind in ("output", "mutation") for role in roles)
        whole = copy.deepcopy(joint.graph)  # the partitioner clears tags that say what is backward
        kept = torch.fx.GraphModule(joint, whole)
        forward, backward = min_cut_rematerialization_partition(
            joint, None, compiler="inductor", num_fwd_outputs=num_outputs
        )
    return CutGraph(graph, kept, forward, backward, num_outputs)


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
        _quiet_loggers(),
        dynamo_settings(without_logging(names)),
    ):
        warnings.simplefilter("ignore")
        dynamo.reset()
        graph: nn.Module = entry(module)(*inputs)
    return graph


@contextlib.contextmanager
def _backward_as_it_runs() -> Iterator[None]:
    """AOTAutograd traces backwards in the `backward_autocast`, not in that of the forward."""
    autocast, autograd, config = backward_autocast(), torch.autograd, torch._functorch.config
    grad: Any = autograd.grad

    def casting(*arguments: Any, **options: Any) -> Any:
        with autocast.entered():
            return grad(*arguments, **options)

    with config.patch(backward_pass_autocast="off"):  # a list of types here breaks torch's log
        autograd.grad = casting if autocast.devices else grad
        try:
            yield
        finally:
            autograd.grad = grad


@contextlib.contextmanager
def _exporting(mode: FakeTensorMode) -> Iterator[None]:
    """The context of an export of a joint graph, inside the export's own stack of contexts."""
    from torch._guards import TracingContext, tracing
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with (
        _quiet_loggers(),
        _use_lazy_graph_module(True),  # hardly any of these graphs is asked for its code
        mode,
        tracing(TracingContext(mode)),
        warnings.catch_warnings(),
        # Backward nodes take the names of modules from their forward ones.
        torch.fx.traceback.preserve_node_meta(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _draws_kept() -> Iterator[None]:
    """Keep random ops whose numbers nothing reads: they leave the generator elsewhere.

    Tracing drops them unless it is told that inductor draws the numbers of eager mode.
    """
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """No logs while tracing: an error in a trace is raised, and need not be logged too."""
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch._subclasses")]
    loggers.append(logging.getLogger("torch._subclasses.fake_tensor"))
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def placeholder_role(node: torch.fx.Node) -> Role:
    """The input that a placeholder of a joint graph stands for."""
    from torch._functorch._aot_autograd import descriptors as d

    desc = node.meta.get("desc")
    if isinstance(desc, d.ParamAOTInput):
        return Role("parameter", desc.target)
    if isinstance(desc, d.BufferAOTInput):
        return Role("buffer", desc.target)
    if isinstance(desc, d.PlainAOTInput):
        return Role("input", desc.idx)
    if isinstance(desc, d.TangentAOTInput) and isinstance(desc.output, d.PlainAOTOutput):
        return Role("tangent", desc.output.idx)
    return Role("other", repr(desc))


def output_roles(graph: torch.fx.Graph) -> list[tuple[Any, Role]]:
    """The outputs of a joint graph (a node or ``None`` each) with what they are."""
    from torch._functorch._aot_autograd import descriptors as d

    node = next(node for node in graph.nodes if node.op == "output")
    found: list[tuple[Any, Role]] = []
    for value, desc in zip(node.args[0], node.meta["desc"], strict=True):
        role = Role("other", repr(desc))
        if isinstance(desc, d.PlainAOTOutput):
            role = Role("output", desc.idx)
        elif isinstance(desc, d.InputMutationAOTOutput):
            role = _of_input("mutation", desc.mutated_input)
        elif isinstance(desc, d.GradAOTOutput):
            role = _of_input("gradient", desc.grad_of)
        found.append((value, role))
    return found


def _of_input(kind: str, desc: Any) -> Role:
    from torch._functorch._aot_autograd import descriptors as d

    if isinstance(desc, d.ParamAOTInput):
        return Role(kind, desc.target, "parameter")
    if isinstance(desc, d.BufferAOTInput):
        return Role(kind, desc.target, "buffer")
    if isinstance(desc, d.PlainAOTInput):
        return Role(kind, desc.idx, "input")
    return Role(kind, repr(desc), "other")


def is_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph was traced in the backward pass."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def is_gradient_sum(node: torch.fx.Node) -> bool:
    """Whether the autograd engine made the node, to add up the gradients of one tensor."""
    return "Gradient addition" in (node.meta.get("stack_trace") or "")


def node_sequence_number(node: torch.fx.Node) -> int:
    """Number of the autograd node that a forward op belongs to, or that a backward op is of."""
    return int(node.meta.get("seq_nr", -1))


def module_path(node: torch.fx.Node) -> str | None:
    """Where Dynamo says the node comes from, like ``model.h.0.mlp``; ``None`` if it does not."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path = next(reversed(stack.values()))[0]
    return str(path) if isinstance(path, str) else None


@contextlib.contextmanager
def autograd_within_an_op() -> Iterator[None]:
    """Let autograd work in the kernel of an op, which runs below it."""
    keys = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradOther", "AutogradFunctionality", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(keys, name))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


@contextlib.contextmanager
def asked_by(ask: Callable[[Any, torch.Tensor], Any]) -> Iterator[None]:
    """Within a trace, have ``ask(method, tensor)`` answer what Python asks of a tensor.

    The tensors of a trace answer some questions by asking others, past all modes.
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    names = ("__bool__", "__int__", "__float__", "__index__", "tolist")
    own = {name: vars(FunctionalTensor)[name] for name in names if name in vars(FunctionalTensor)}

    def asking(method: Any) -> Any:
        return lambda tensor: ask(method, tensor)

    try:
        for name in own:
            setattr(FunctionalTensor, name, asking(getattr(torch.Tensor, name)))
        yield
    finally:
        for name, method in own.items():
            setattr(FunctionalTensor, name, method)


def inductor_compiled(
    function: Callable[..., Sequence[Any]], examples: Sequence[torch.Tensor], mode: FakeTensorMode
) -> Callable[[list[Any]], Sequence[Any]]:
    """`function`, of functional ops on flat tensors, compiled by inductor.

    It takes its arguments in one list, which it empties as it goes. Equal ops are not merged: what
    is computed twice stays so.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with config.patch(fallback_random=True), mode, torch.no_grad():
        graph = make_fx(function, decomposition_table=select_decomp_table())(*examples)
        compiled: Any = compile_fx_inner(graph, list(examples))

    def run(arguments: list[Any]) -> Sequence[Any]:
        found: Sequence[Any] = compiled(arguments)
        return found

    return run


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


class _Whatever:
    """A size or strides that are equal to any."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


Strides = tuple[int, ...] | None
"""The strides of a gradient; ``None`` where no gradient comes."""


@contextlib.contextmanager
def _gradients_as_they_come(strides: Mapping[int, Strides]) -> Iterator[None]:
    """Within it, AOTAutograd makes backwards that get gradients in whatever strides they come.

    It traces them for gradients with the strides of the outputs, or with the given ones by output.
    By itself it would copy gradients that come in others. Where sizes are open, or entries of an
    output share memory, it still does.
    """
    from torch._functorch import aot_autograd as module
    from torch._functorch._aot_autograd import descriptors as d
    from torch._functorch._aot_autograd.schemas import MemoryFormatMeta, PlainTensorMeta

    aot_autograd: Any = module
    own, grad = aot_autograd.run_functionalized_fw_and_collect_metadata, torch.autograd.grad
    whatever: Any = _Whatever()
    present: list[bool] = []

    def collecting(*arguments: Any, **options: Any) -> Any:
        collect = own(*arguments, **options)

        @functools.wraps(collect)
        def run(*flat: Any) -> Any:
            found = collect(*flat)
            descs = found.traced_tangents_descs
            present[:] = [True] * len(descs)
            for i, (fake, desc) in enumerate(zip(found.traced_tangents, descs, strict=True)):
                meta, output = found.subclass_tangent_meta[i], getattr(desc, "output", None)
                expected = meta.memory_format if isinstance(meta, PlainTensorMeta) else None
                if expected is None or expected.memory_format is not None:
                    continue
                if isinstance(output, d.PlainAOTOutput) and output.idx in strides:
                    given = strides[output.idx]
                    present[i] = given is not None
                    if given is not None:
                        with fake.fake_mode:
                            found.traced_tangents[i] = torch.empty_strided(
                                fake.shape, given, dtype=fake.dtype, device=fake.device
                            )
                found.subclass_tangent_meta[i] = dataclasses.replace(
                    meta, memory_format=MemoryFormatMeta(size=whatever, stride=whatever)
                )
            return found

        return run

    def of_present(outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        if len(outputs) == len(present) and not all(present):
            outputs = list(itertools.compress(outputs, present))
            grad_outputs = list(itertools.compress(grad_outputs, present))
        return grad(outputs, inputs, grad_outputs, **options)

    aot_autograd.run_functionalized_fw_and_collect_metadata = collecting
    autograd: Any = torch.autograd
    autograd.grad = of_present
    try:
        yield
    finally:
        autograd.grad = grad
        aot_autograd.run_functionalized_fw_and_collect_metadata = own


def node_of_graph(found: Any) -> Any:
    """The node of the autograd graph of the compiled graph that returned `found`, or ``None``."""
    for one in found if isinstance(found, tuple | list) else (found,):
        node: Any = one.grad_fn if isinstance(one, torch.Tensor) else None
        if node is not None and type(node).__name__ == "CompiledFunctionBackward":
            return node
    return None


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


def without_memory(values: Sequence[Any]) -> list[Any]:
    """The tensors among `values` as fakes of one mode; the rest as it is."""
    mode = fake_mode()
    return [mode.from_tensor(it) if isinstance(it, torch.Tensor) else it for it in values]


@contextlib.contextmanager
def tracing_again(examples: Sequence[Any]) -> Iterator[None]:
    """A context of a trace as Dynamo would open it, for the fakes of `without_memory`."""
    from torch._guards import TracingContext, tracing

    fakes = [it for it in examples if isinstance(it, FakeTensor)]
    with tracing(TracingContext(fakes[0].fake_mode if fakes else fake_mode())):
        yield


Partition = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]


def compiled_in_halves(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    prepare: Callable[[torch.fx.GraphModule, int, frozenset[int]], Any],
    strides: Mapping[int, Strides] | None = None,
    *,
    keeps_draws: bool = True,
) -> Callable[..., Any]:
    """A graph of Dynamo as a function whose forward and backward are those of a `prepare` d object.

    AOTAutograd traces forward and backward without decomposing anything, and keeps what is its own:
    copies into inputs that change, outputs that are views, the node of the autograd graph.

    Parameters
    ----------
    prepare
        Of the joint graph, its number of forward outputs, and the positions of inputs that stay
        where they are; the object has ``forward(arguments) -> [*outputs, *saved]`` and
        ``backward([*saved, *gradients of outputs]) -> gradients of inputs``. Both empty their list.
        How many tensors are saved may differ from call to call.
    strides
        Number of an output -> the strides of its gradient for which the backward is traced, if not
        those of the output; ``None`` for an output without a gradient. The backward then gets
        gradients in whatever strides they come. If `strides` is ``None``, AOTAutograd copies
        gradients that come in other strides than those of the outputs.
    keeps_draws
        Whether random ops stay whose numbers nothing reads, as in eager mode. Inductor drops them,
        and draws other numbers than eager mode.
    """
    from torch._dynamo.backends.common import aot_autograd

    made: list[Any] = []
    most_saved: list[int] = []

    def partition(
        joint: torch.fx.GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        fixed = frozenset(static_lifetime_input_indices or ())
        with without_modes():  # tensors made meanwhile are real
            made.append(prepare(joint, num_fwd_outputs, fixed))
        most_saved.append(2 * len(joint.graph.nodes) + 1)  # values, states of generators, a header
        return _halves_without_saving(joint, num_fwd_outputs)

    def forward(_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        _let_saved_tensors_vary(most_saved[-1])
        return _boxed(made[-1].forward)

    def backward(_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(made[-1].backward)

    def inference(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(lambda arguments: module.forward(*arguments))

    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=False,
    )
    as_they_come = contextlib.nullcontext() if strides is None else _gradients_as_they_come(strides)
    # Before torch 2.13 gradients were put into a memory format by default, not into strides.
    by_strides = torch._functorch.config.patch(guess_tangent_strides_as_outputs=True)
    with (
        _quiet_loggers(),
        _draws_kept() if keeps_draws else contextlib.nullcontext(),
        eager_kernels(examples),
        true_layouts(),
        by_strides,
        as_they_come,
        _backward_as_it_runs(),
    ):
        found: Callable[..., Any] = compiler(graph_module, list(examples))
    return found


def _let_saved_tensors_vary(most: int) -> None:
    """Let a forward save up to `most` tensors, another number in each call.

    Since torch 2.14 AOTAutograd looks up for each whether it is an input of the graph; where it is
    told that none is, it detaches those that are views.
    """
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    flags = getattr(metadata, "saved_tensor_is_graph_input", None)
    if flags is not None:
        flags += [False] * (most - len(flags))


def _boxed(function: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def run(arguments: list[Any]) -> Any:
        return function(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _halves_without_saving(
    joint: torch.fx.GraphModule, num_outputs: int
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The halves of `joint` by name and layout alone, for AOTAutograd's records; neither is run."""
    end = next(node for node in joint.graph.nodes if node.op == "output")
    outputs: Any = end.args[0]
    descs = end.meta.get("desc")
    halves = []
    for of_backward in (False, True):
        graph, copied = torch.fx.Graph(), {}
        for node in joint.graph.nodes:
            if node.op == "placeholder" and ("tangents" in node.name) == of_backward:
                copied[node] = graph.node_copy(node)
        wanted = outputs[num_outputs:] if of_backward else outputs[:num_outputs]
        for node in wanted:
            if isinstance(node, torch.fx.Node) and node not in copied:
                stub = graph.call_function(torch.empty, ((0,),))
                stub.meta = dict(node.meta)
                copied[node] = stub
        last = graph.output(tuple(copied.get(node) for node in wanted))
        if descs is not None:
            part = descs[num_outputs:] if of_backward else descs[:num_outputs]
            last.meta["desc"] = list(part)
        halves.append(torch.fx.GraphModule(joint, graph))
    return halves[0], halves[1]


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
