"""Models as op records, from which both the graph and the chain of a workload are derived."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dataflow.chain import Chain, Stage
from ..dataflow.graph import Graph, Op
from ..dataflow.variants import StageVariant
from .devices import Roofline


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of a stage, before it has a time.

    Parameters
    ----------
    name
        Unique in its stage and phase.
    reads
        Tensors by their name in the stage; ``"in"`` is the stage's input, ``"out"`` its output,
        ``"d.out"`` and ``"d.in"`` their gradients.
    writes
        Tensor -> size in bytes.
    flops
        Floating point operations of one run.
    parameter_bytes
        Weights read, which count as traffic but not as activations.
    optional
        Tensors of `writes` that only a backward op reads.
    workspace_bytes
        Temporary bytes that live only while the op runs.
    """

    name: str
    reads: tuple[str, ...]
    writes: Mapping[str, int]
    flops: int = 0
    parameter_bytes: int = 0
    optional: tuple[str, ...] = ()
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage: its forward ops in order, its backward ops in order, and its parameters."""

    name: str
    forward: tuple[OpRecord, ...]
    backward: tuple[OpRecord, ...]
    num_parameters: int = 0


VariantsOf = Callable[[StageRecord], Iterable[tuple[str, str, StageRecord]]]
"""A function from a stage to the names, kinds and records of its variants."""

Costs = tuple[float, float, int, int, int, int, int]
"""The fields of `Stage` from `forward_s` to `saving_workspace_bytes`."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A line of stages with the size of the first one's input.

    Attributes
    ----------
    matmul_dtype
        Number format of the matrix products, which sets the peak rate.
    """

    name: str
    input_bytes: int
    stages: tuple[StageRecord, ...]
    matmul_dtype: str = "fp16"

    @property
    def num_parameters(self) -> int:
        """Parameters of all stages."""
        return sum(stage.num_parameters for stage in self.stages)


def merge_stages(name: str, parts: Sequence[StageRecord]) -> StageRecord:
    """One stage made of consecutive `parts`; inner outputs get the name of their part."""
    forward: list[OpRecord] = []
    backward: list[OpRecord] = []
    for i, part in enumerate(parts):
        names: dict[str, str] = {}
        if i:
            names |= {"in": f"{parts[i - 1].name}.out", "d.in": f"d.{parts[i - 1].name}.out"}
        if i < len(parts) - 1:
            names |= {"out": f"{part.name}.out", "d.out": f"d.{part.name}.out"}
        kept = {"in", "out", "d.in", "d.out"} - set(names)
        forward += [_renamed(op, part.name, names, kept) for op in part.forward]
        backward = [_renamed(op, part.name, names, kept) for op in part.backward] + backward
    count = sum(part.num_parameters for part in parts)
    return StageRecord(name, tuple(forward), tuple(backward), count)


def _renamed(op: OpRecord, prefix: str, names: Mapping[str, str], kept: set[str]) -> OpRecord:
    def new(tensor: str) -> str:
        if tensor in names:
            return names[tensor]
        return tensor if tensor in kept else f"{prefix}.{tensor}"

    return replace(
        op,
        name=f"{prefix}.{op.name}",
        reads=tuple(new(t) for t in op.reads),
        writes={new(t): size for t, size in op.writes.items()},
        optional=tuple(new(t) for t in op.optional),
    )


def to_graph(model: ModelRecord, roofline: Roofline, *, static_bytes: int = 0) -> Graph:
    """The whole training step of `model`, with one op per record; O(ops)."""
    sizes = {"input": model.input_bytes}
    forward: list[Op] = []
    backward: list[list[Op]] = []
    source, gradient = "input", "no gradient of the input"
    for i, stage in enumerate(model.stages):
        names = {"in": source, "d.in": gradient}
        source, gradient = f"{stage.name}.out", f"{stage.name}.d.out"

        def place(op: OpRecord, phase: str, stage: str, names: Mapping[str, str]) -> Op:
            def new(tensor: str) -> str:
                return names.get(tensor, f"{stage}.{tensor}")

            writes = {new(t): size for t, size in op.writes.items()}
            sizes.update(writes)
            reads = tuple(new(t) for t in op.reads)
            return Op(
                name=f"{stage}.{op.name}",
                phase=phase,
                time_s=roofline.time_s(op.flops, _moved(op, reads, sizes), model.matmul_dtype),
                workspace_bytes=op.workspace_bytes,
                reads=reads,
                writes=writes,
                optional=tuple(new(t) for t in op.optional),
            )

        forward += [place(op, "forward", stage.name, names) for op in stage.forward]
        sizes[gradient] = sizes[source]
        reverse = _without_input_gradient(stage.backward) if i == 0 else stage.backward
        backward.append([place(op, "backward", stage.name, names) for op in reverse])
    loss = Op(name="loss", phase="loss", reads=(source,), writes={gradient: sizes[source]})
    return Graph(
        name=model.name,
        ops=(*forward, loss, *(op for ops in reversed(backward) for op in ops)),
        inputs={"input": model.input_bytes},
        static_bytes=static_bytes,
    )


def _moved(op: OpRecord, reads: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Bytes that one run reads and writes, weights included."""
    return sum(sizes[t] for t in reads) + sum(op.writes.values()) + op.parameter_bytes


def _without_input_gradient(ops: Sequence[OpRecord]) -> list[OpRecord]:
    """`ops` of a first stage, whose input needs no gradient."""
    found = []
    for op in ops:
        writes = {t: size for t, size in op.writes.items() if t != "d.in"}
        found.append(replace(op, writes=writes))
    return found


def to_chain(
    model: ModelRecord,
    roofline: Roofline,
    *,
    static_bytes: int = 0,
    variants_of: VariantsOf | None = None,
) -> Chain:
    """The training step of `model` as a chain; replaying each stage's ops gives the workspaces.

    A stage saves its output, and the tensors that its forward writes and its backward reads. Its
    input
    is the output of the stage before. So ``input_bytes`` and all ``saved_bytes`` together are
    exactly
    the forward tensors that the op graph keeps for its backward, plus the logits for the loss.

    The forward workspaces cover the temporary tensors inside the stage, in a run that keeps nothing
    and
    in a run that keeps everything. The backward workspace covers the gradients inside the stage,
    with
    saved tensors freed as they are used. During a backward, a chain holds the input, the whole
    bundle
    and both boundary gradients, which the single ops need not. So the peak of the chain is never
    below
    the peak of the op graph, which is the safe side.

    `variants_of` returns the variants of a stage; variants that save bytes become variants of the
    chain's stage.
    """
    stages = []
    previous = model.input_bytes
    # Equal layers share their op tuples, so each kind of layer is replayed once.
    known: dict[tuple[int, int, int, bool], tuple[Costs, tuple[StageVariant, ...]]] = {}
    for i, stage in enumerate(model.stages):
        key = id(stage.forward), id(stage.backward), previous, i == 0
        if key not in known:
            backward = _without_input_gradient(stage.backward) if i == 0 else stage.backward
            costs = _stage_costs(stage.forward, backward, previous, model.matmul_dtype, roofline)
            found = []
            for name, kind, other in variants_of(stage) if variants_of is not None else ():
                backward = _without_input_gradient(other.backward) if i == 0 else other.backward
                changed = _stage_costs(
                    other.forward, backward, previous, model.matmul_dtype, roofline
                )
                if changed[3] < costs[3]:
                    found.append(_variant(name, kind, costs, changed))
            known[key] = costs, tuple(found)
        costs, found_variants = known[key]
        stages.append(Stage(stage.name, *costs, variants=found_variants))
        previous = stages[-1].output_bytes
    return Chain(model.name, model.input_bytes, tuple(stages), static_bytes=static_bytes)


def _variant(name: str, kind: str, costs: Costs, changed: Costs) -> StageVariant:
    extra_s = changed[0] + changed[1] - costs[0] - costs[1]
    return StageVariant(
        name=name,
        kind=kind,
        saved_bytes=changed[3],
        extra_s=max(0.0, extra_s),  # a variant that runs faster is not credited for it
        backward_workspace_bytes=changed[5],
        saving_workspace_bytes=changed[6],
    )


def _stage_costs(
    forward: Sequence[OpRecord],
    backward: Sequence[OpRecord],
    input_bytes: int,
    dtype: str,
    roofline: Roofline,
) -> Costs:
    sizes: dict[str, int] = {"in": input_bytes}
    for op in [*forward, *backward]:
        sizes.update(op.writes)
    output = sizes["out"]
    sizes["d.out"] = output
    made = {tensor for op in forward for tensor in op.writes}
    needed = {tensor for op in backward for tensor in op.reads} & made
    saved = needed | {"out"}
    saved_bytes = sum(sizes[t] for t in saved)
    optional = {t for op in forward for t in op.optional}
    plain = _peak(forward, sizes, start=(), stay={"out"}, absent=optional | {"in"})
    saving = _peak(forward, sizes, start=(), stay=saved, absent={"in"})
    gradients = {"d.in"} if "d.in" in sizes else set()
    reverse = _peak(
        backward, sizes, start=(*sorted(needed), "d.out"), stay=gradients, absent={"in"}
    )
    charged = saved_bytes + output + sizes.get("d.in", 0)

    def time_s(ops: Iterable[OpRecord]) -> float:
        return sum(roofline.time_s(op.flops, _moved(op, op.reads, sizes), dtype) for op in ops)

    return (
        time_s(forward),
        time_s(backward),
        output,
        saved_bytes,
        max(0, plain - output),
        max(0, reverse - charged),
        max(0, saving - saved_bytes),
    )


def _peak(
    ops: Sequence[OpRecord],
    sizes: Mapping[str, int],
    *,
    start: Sequence[str],
    stay: set[str],
    absent: set[str],
) -> int:
    """Largest sum of live tensors and workspace while `ops` run.

    `start` are alive at the beginning, `stay` are never freed, `absent` are never charged.
    """
    last = {tensor: i for i, op in enumerate(ops) for tensor in op.reads}
    live = {tensor for tensor in start if tensor not in absent}
    peak = 0
    for i, op in enumerate(ops):
        live |= {tensor for tensor in op.writes if tensor not in absent}
        peak = max(peak, op.workspace_bytes + sum(sizes[tensor] for tensor in live))
        live = {tensor for tensor in live if tensor in stay or last.get(tensor, -1) > i}
    return peak
