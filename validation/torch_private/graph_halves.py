"""A graph of Dynamo as a function whose forward and backward are our own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .eager_kernels import eager_kernels
from .in_place_strides import strides_kept_in_place
from .kept_checks import checks_kept
from .kernel_layouts import true_layouts
from .op_modes import without_modes
from .opaque_places import OpaquePlaces
from .quiet_traces import backward_as_it_runs, draws_kept, quiet_loggers
from .storage_refs import storage_key


class _Whatever:
    """A size or strides that are equal to any."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


Strides = tuple[int, ...] | None
"""The strides of a gradient; ``None`` where no gradient comes."""


@contextlib.contextmanager
def _gradients_as_they_come(
    strides: Mapping[int, Strides] | None, sees_written: Callable[[frozenset[int]], None]
) -> Iterator[None]:
    """Within it, AOTAutograd makes backwards that get gradients in whatever strides they come.

    It traces them for gradients with the strides of the outputs, or with the given ones by output.
    By itself it would copy gradients that come in others. Where sizes are open, or entries of an
    output share memory, it still does; and everywhere if `strides` is ``None``.

    In any case each gradient has a storage of its own in the trace. By itself it would stand in
    that of its output, which for parts of a whole (`split`) is that of an input, or of each other.
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
            sees_written(frozenset(i for i, it in enumerate(found.input_info) if it.mutates_data))
            _put_apart(found.traced_tangents, flat)
            descs = found.traced_tangents_descs if strides is not None else ()
            present[:] = [True] * len(descs)
            for i, (fake, desc) in enumerate(zip(found.traced_tangents, descs, strict=False)):
                meta, output = found.subclass_tangent_meta[i], getattr(desc, "output", None)
                expected = meta.memory_format if isinstance(meta, PlainTensorMeta) else None
                if expected is None or expected.memory_format is not None:
                    continue
                if isinstance(output, d.PlainAOTOutput) and strides and output.idx in strides:
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


def _put_apart(tangents: list[Any], arguments: Sequence[Any]) -> None:
    """Replace those of `tangents` that share storage, with each other or with `arguments`."""
    plain = [it for it in (*tangents, *arguments) if type(it) is FakeTensor]
    shared = Counter(map(storage_key, {id(it): it for it in plain}.values()))
    for i, fake in enumerate(tangents):
        if type(fake) is FakeTensor and shared[storage_key(fake)] > 1:
            with fake.fake_mode:
                tangents[i] = torch.empty_strided(
                    fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device
                )


def compiled_in_halves(
    graph_module: torch.fx.GraphModule,
    examples: Sequence[Any],
    prepare: Callable[[torch.fx.GraphModule, int, frozenset[int], Sequence[int]], Any],
    strides: Mapping[int, Strides] | None = None,
    *,
    keeps_draws: bool = True,
    sees_written: Callable[[frozenset[int]], None] = lambda _: None,
) -> Callable[..., Any]:
    """A graph of Dynamo as a function whose forward and backward are those of a `prepare` d object.

    AOTAutograd traces forward and backward without decomposing anything, and keeps what is its own:
    copies into inputs that change, outputs that are views, the node of the autograd graph.

    Parameters
    ----------
    prepare
        Of the joint graph, its number of forward outputs, the positions of inputs that stay
        where they are, and the places of the arguments of Dynamo's graph among these inputs; the
        object has ``forward(arguments) -> [*outputs, *saved]`` and
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
    sees_written
        Called with the places of the arguments that the graph writes.
    """
    from torch._dynamo.backends.common import aot_autograd

    made: list[Any] = []
    opaque: list[OpaquePlaces] = []
    most_saved: list[int] = []

    def partition(
        joint: torch.fx.GraphModule,
        _inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        halves = _halves_without_saving(joint, num_fwd_outputs)
        opaque.append(OpaquePlaces.taken_out(joint, num_fwd_outputs))
        fixed = opaque[-1].fixed(static_lifetime_input_indices or ())
        with without_modes():  # tensors made meanwhile are real
            num_outputs = opaque[-1].num_outputs
            made.append(prepare(joint, num_outputs, fixed, opaque[-1].places))
        most_saved.append(2 * len(joint.graph.nodes) + 1)  # values, states of generators, a header
        return halves

    def forward(_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        _let_saved_tensors_vary(most_saved[-1])
        return _boxed(opaque[-1].forward(made[-1].forward))

    def backward(_module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(opaque[-1].backward(made[-1].backward))

    def inference(module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        return _boxed(lambda arguments: module.forward(*arguments))

    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=False,
    )
    # Before torch 2.13 gradients were put into a memory format by default, not into strides.
    by_strides = torch._functorch.config.patch(guess_tangent_strides_as_outputs=True)
    with (
        quiet_loggers(),
        draws_kept() if keeps_draws else contextlib.nullcontext(),
        strides_kept_in_place() if keeps_draws else contextlib.nullcontext(),
        checks_kept(),
        eager_kernels(examples),
        true_layouts(),
        by_strides,
        _gradients_as_they_come(strides, sees_written),
        backward_as_it_runs(),
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
        # Others are numbers, or None.
        last = graph.output(
            tuple(copied[it] if isinstance(it, torch.fx.Node) else it for it in wanted)
        )
        if descs is not None:
            part = descs[num_outputs:] if of_backward else descs[:num_outputs]
            last.meta["desc"] = list(part)
        halves.append(torch.fx.GraphModule(joint, graph))
    return halves[0], halves[1]
