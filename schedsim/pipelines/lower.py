"""A pipeline as a graph: the ops of one micro-batch, then the ops of the next.

For micro-batch j, with ``.j`` at the end of every name::

    in                 writes a0, on the first device
    F{i}               reads a{i}, writes a{i+1} and, for the backward, r{i+1}
    send:a{i}          on link:A-B, where layer i begins a stage: reads a{i}, writes a{i}@B
    loss               on the last device
    wait:{v}           reads the gradient of stage v; only where recomputation waits for it
    B{i}               reads d{i+1}, a{i}, a{i+1}, r{i+1}; writes d{i}
    send:d{i}          the way back: writes d{i}@A
    W{i}               the gradients of the weights, where the backward is split
    reduce:a{i}, :d{i} tensor-parallel collectives on link:K-tp, in place

Ops of device K run on stream ``compute:K`` and write to pool ``device:K``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..dataflow.graph import Graph, Op

if TYPE_CHECKING:
    from .pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Template:
    """The ops of one micro-batch, and their indices.

    Attributes
    ----------
    ops
        Names lack the number of the micro-batch at the end.
    index
        Name -> index in `ops`. Op `k` of micro-batch `j` has index ``j * len(ops) + k``.
    """

    ops: tuple[Op, ...]
    index: dict[str, int]


def make_template(pipeline: Pipeline) -> Template:
    """The ops of one micro-batch, in an order in which they can run; O(layers)."""
    ops = tuple(_ops(pipeline))
    return Template(ops, {op.name: k for k, op in enumerate(ops)})


def to_graph(pipeline: Pipeline) -> Graph:
    """The step of `pipeline` as a graph; O(layers * micro-batches).

    Examples
    --------
    >>> from schedsim.workloads.synthetic import uniform
    >>> from schedsim.pipelines import make_pipeline
    >>> graph = to_graph(make_pipeline(uniform(2), 2, 2))
    >>> graph.op_names[:5], graph.ops[2].stream
    (('in.0', 'F0.0', 'send:a1.0', 'F1.0', 'loss.0'), 'link:0-1')
    """
    template = make_template(pipeline)
    ops = []
    for micro in range(pipeline.num_micro_batches):
        end = f".{micro}"
        for op in template.ops:
            writes = {name + end: size for name, size in op.writes.items()}
            ops.append(
                replace(
                    op,
                    name=op.name + end,
                    reads=tuple([name + end for name in op.reads]),
                    writes=writes,
                    optional=tuple([name + end for name in op.optional]),
                    in_place={out + end: source + end for out, source in op.in_place.items()},
                    pools={name + end: pool for name, pool in op.pools.items()},
                )
            )
    return Graph(
        name=f"{pipeline.name} over {pipeline.num_devices} devices",
        ops=tuple(ops),
        pool_static_bytes={
            pool_name(k): size for k, size in enumerate(pipeline.device_static_bytes) if size
        },
    )


def pool_name(device: int) -> str:
    """The memory of a device."""
    return f"device:{device}"


def stream_name(device: int) -> str:
    """The compute stream of a device."""
    return f"compute:{device}"


class _TensorNames:
    """Tensors and streams of a pipeline, by layer."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        stages = range(pipeline.num_stages)
        self.stage_of = {i: v for v in stages for i in pipeline.stage_layers(v)}
        self.device = {i: pipeline.device_of(v) for i, v in self.stage_of.items()}

    def crosses(self, i: int) -> bool:
        """Whether the input of layer i comes from another device."""
        return 0 < i < self.pipeline.chain.num_stages and self.device[i - 1] != self.device[i]

    def received(self, i: int) -> str:
        """The input of layer i on its own device."""
        return f"a{i}@{self.device[i]}" if self.crosses(i) else f"a{i}"

    def gradient(self, i: int) -> str:
        """The gradient of layer i's output on its own device."""
        return f"d{i + 1}@{self.device[i]}" if self.crosses(i + 1) else f"d{i + 1}"


def _ops(pipeline: Pipeline) -> Iterator[Op]:
    chain, names = pipeline.chain, _TensorNames(pipeline)
    sizes = [chain.input_bytes, *(layer.output_bytes for layer in chain.stages)]
    num = chain.num_stages
    # A micro-batch enters memory when its first forward begins, not when the step begins.
    yield _on_device(0, Op("in", writes={"a0": sizes[0]}, once=True))
    for i in range(num):
        yield from _forward(pipeline, names, i)
        if names.crosses(i + 1):
            yield _send(pipeline, "a", i + 1, names.device[i], names.device[i + 1], sizes[i + 1])
    yield _on_device(
        names.device[num - 1],
        Op(
            "loss",
            "loss",
            chain.loss_s,
            chain.loss_workspace_bytes,
            reads=(f"a{num}",),
            writes={f"d{num}": sizes[num]},
        ),
    )
    for i in range(num - 1, -1, -1):
        if pipeline.waits_for_gradient and names.crosses(i + 1):
            wait = Op(f"wait:{names.stage_of[i]}", "backward", reads=(names.gradient(i),))
            yield _on_device(names.device[i], wait)
        yield from _backward(pipeline, names, i, sizes[i])
        if names.crosses(i):
            yield _send(pipeline, "d", i, names.device[i], names.device[i - 1], sizes[i])
        if pipeline.split_backward:
            yield _weight_gradient(pipeline, names, i)


def _forward(pipeline: Pipeline, names: _TensorNames, i: int) -> Iterator[Op]:
    layer, device = pipeline.chain.stages[i], names.device[i]
    seconds = pipeline.collectives[i].forward_s if pipeline.collectives else 0.0
    output = f"p{i + 1}" if seconds else f"a{i + 1}"
    bundle = _bundle(pipeline, i)
    yield _on_device(
        device,
        Op(
            f"F{i}",
            "forward",
            layer.forward_s,
            layer.forward_workspace_bytes,
            reads=(names.received(i),),
            writes={output: layer.output_bytes} | bundle,
            optional=tuple(bundle),
            saving_workspace_bytes=layer.saving_workspace_bytes,
        ),
    )
    if seconds:
        yield _reduce("forward", f"a{i + 1}", output, layer.output_bytes, seconds, device)


def _backward(pipeline: Pipeline, names: _TensorNames, i: int, input_bytes: int) -> Iterator[Op]:
    layer, device = pipeline.chain.stages[i], names.device[i]
    seconds = pipeline.collectives[i].backward_s if pipeline.collectives and i else 0.0
    output = f"e{i}" if seconds else f"d{i}"
    writes = {output: input_bytes} if i else {}
    time_s = layer.backward_s
    if pipeline.split_backward:
        time_s -= _weight_s(pipeline, i)
        if pipeline.weight_gradients and pipeline.weight_gradients[i].gradient_bytes:
            writes[f"w{i + 1}"] = pipeline.weight_gradients[i].gradient_bytes
    reads = [names.gradient(i), names.received(i)]
    freed = pipeline.free_outputs and names.crosses(i + 1)
    if not pipeline.collectives and not freed:
        reads.append(f"a{i + 1}")
    yield _on_device(
        device,
        Op(
            f"B{i}",
            "backward",
            time_s,
            layer.backward_workspace_bytes,
            reads=(*reads, *_bundle(pipeline, i)),
            writes=writes,
            once=True,  # it accumulates into the gradients of the weights
        ),
    )
    if seconds:
        yield _reduce("backward", f"d{i}", output, input_bytes, seconds, device)


def _weight_gradient(pipeline: Pipeline, names: _TensorNames, i: int) -> Op:
    if pipeline.weight_gradients:
        part = pipeline.weight_gradients[i]
        reads = tuple(name for name in _bundle(pipeline, i) if name.startswith("q"))
        reads += (f"w{i + 1}",) if part.gradient_bytes else ()
    else:
        reads = (names.gradient(i), names.received(i), *_bundle(pipeline, i))
    op = Op(f"W{i}", "backward", _weight_s(pipeline, i), reads=reads, once=True)
    return _on_device(names.device[i], op)


def _weight_s(pipeline: Pipeline, i: int) -> float:
    if pipeline.weight_gradients:
        return pipeline.weight_gradients[i].time_s
    return pipeline.chain.stages[i].backward_s / 2


def _bundle(pipeline: Pipeline, i: int) -> dict[str, int]:
    """The saved bundle of layer i without its output: ``r`` for B alone, ``q`` for B and W."""
    layer = pipeline.chain.stages[i]
    rest = layer.saved_bytes - layer.output_bytes
    kept = pipeline.weight_gradients[i].kept_bytes if pipeline.weight_gradients else 0
    found = {f"r{i + 1}": rest - kept, f"q{i + 1}": kept}
    return {name: size for name, size in found.items() if size}


def _reduce(phase: str, output: str, source: str, size: int, seconds: float, device: int) -> Op:
    return Op(
        f"reduce:{output}",
        phase,
        seconds,
        reads=(source,),
        writes={output: size},
        in_place={output: source},
        stream=f"link:{device}-tp",
        pools={output: pool_name(device)},
    )


def _send(pipeline: Pipeline, kind: str, i: int, sender: int, receiver: int, size: int) -> Op:
    output = f"{kind}{i}@{receiver}"
    return Op(
        f"send:{kind}{i}",
        "forward" if kind == "a" else "backward",
        pipeline.message_s(size),
        reads=(f"{kind}{i}",),
        writes={output: size},
        stream=f"link:{sender}-{receiver}",
        pools={output: pool_name(receiver)},
    )


def _on_device(device: int, op: Op) -> Op:
    pool = pool_name(device)
    return replace(op, stream=stream_name(device), pools=dict.fromkeys(op.writes, pool))
