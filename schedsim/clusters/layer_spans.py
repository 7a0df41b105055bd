"""One layer by itself, below what it takes in any step: seconds, and bytes of its backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from .fabric import Fabric
from .layer_ops import LayerOps
from .layer_recompute import as_needed
from .tape import RankOp
from .training import Training


def op_s(op: RankOp, fabric: Fabric) -> float:
    """Seconds of an op on its stream."""
    return op.link_s if op.stream != "compute" else op.compute_s(fabric) + op.link_s


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """The least seconds to the end of the last computation of some ops.

    `from_input_s` is counted from the end of the op that makes their input, `from_compute_s` from
    where computation comes to the first of them. The end is no earlier than either says.
    """

    from_input_s: float
    from_compute_s: float


def span_of(ops: Sequence[RankOp], given: str, made: str, fabric: Fabric) -> LayerSpan:
    """Of `ops`, which read the input `given`, and whose last computation makes `made`.

    Streams run their ops in order. A message that waits for neither may have come before. Where
    another op makes `made`, what follows may begin before the end: nothing is said of the input.
    """
    seconds = []
    for input_s, compute_s in ((0.0, -inf), (-inf, 0.0)):
        free, ready = {"compute": compute_s}, {given: input_s}
        for op in ops:
            ends = (ready.get(one, -inf) for one in op.reads)
            end = max(free.get(op.stream, -inf), *ends, -inf) + op_s(op, fabric)
            free[op.stream] = end
            ready |= dict.fromkeys(op.writes, end)
        seconds.append(max(0.0, free["compute"]))
    last = next((op for op in reversed(ops) if op.stream == "compute"), None)
    is_last = last is not None and made in last.writes
    return LayerSpan(seconds[0] if is_last else 0.0, seconds[1])


def backward_ops(
    layer: LayerOps, again: Sequence[RankOp], training: Training
) -> list[tuple[RankOp, bool]]:
    """The ops of a backward in the order in which a rank runs them; whether each runs `again`."""
    if training.is_graph:
        return as_needed(again, layer.backward, anew=training.compiled)
    first = before_recomputing(layer.backward, training) if again else 0
    ops = [(op, False) for op in layer.backward[:first]]
    ops += [(op, True) for op in again]
    return ops + [(op, False) for op in layer.backward[first:]]


def before_recomputing(backward: Sequence[RankOp], training: Training) -> int:
    """How many ops of a layer's backward run before anything is recomputed.

    PyTorch's checkpoint runs the forward again when the first tensor of it is read; Megatron's
    runs it first.
    """
    if training.state == "megatron":
        return 0
    of_forward = (any(t != "W" and not t.startswith("d.") for t in op.reads) for op in backward)
    return next((k for k, reads in enumerate(of_forward) if reads), 0)


def backward_peak_bytes(
    layer: LayerOps,
    ops: Sequence[tuple[RankOp, bool]],
    kept: set[str],
    *,
    gradients: bool,
) -> int:
    """The most bytes of a layer's own tensors at once in its backward, which runs `ops`.

    At first there is what it has `kept` and reads. Its input, its output, the gradient of its
    output and its weights do not count; those of its weights do with `gradients`. What is not read
    again is freed; a rank frees nothing earlier, so that it has at least so much beside what is not
    of this layer.
    """
    outside = {"x", layer.output, "d.out", "W"}
    # What each op is the last to use; a tensor may be written again for later ops.
    needed: set[str] = set()
    done: list[set[str]] = []
    for op, _ in reversed(ops):
        used = {*op.reads, *op.writes}
        done.append(used - needed)
        needed = (needed - op.writes.keys()) | set(op.reads)
    live = {one: layer.sizes[one] for one in (kept & needed) - outside}
    most = sum(live.values())
    for (op, _), free in zip(ops, reversed(done), strict=True):
        for one, size in op.writes.items():
            source = op.in_place.get(one)
            if one in outside or (one.startswith("g.") and not gradients):
                continue
            if source is not None:
                live.pop(source, 0)
            live[one] = 0 if source in outside else size
        most = max(most, sum(live.values()) + op.workspace_bytes)
        for one in free:
            if not one.startswith("g."):
                live.pop(one, 0)
    return most
