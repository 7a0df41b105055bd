"""What a layer keeps for its backward by each policy, and which of its ops run again."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SchedsimError, did_you_mean
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .fabric import Fabric
from .kept_names import kept_names, split_host
from .layer_blocks import COPY
from .layer_ops import LayerOps, LayerWriter
from .tape import RankOp
from .training import Training


def kept_tensors(layer: LayerOps, policy: str, training: Training) -> set[str]:
    """The tensors of a layer's forward that are kept for its backward, read there or not.

    ``core`` runs only attention again, and keeps its inputs (Korthikanti et al. 2022, section 5).
    ``selective`` counts neither the router's product nor those of grouped experts, which are not
    among the ops that torchtitan's policy keeps. A
    compiled layer without a policy keeps the tensors that a product or an attention of the backward
    reads, and the outputs of these ops; the rest is recomputed in the kernel that reads it, as
    PyTorch's partitioner recomputes nothing that the backward would have to write to memory.

    Examples
    --------
    >>> from schedsim.clusters import get_architecture, get_fabric
    >>> writer = LayerWriter(get_architecture("llama3-8b"), Degrees(), Training(), 8,
    ...                      get_fabric("h100-80gb"))
    >>> sorted(kept_tensors(writer.layer(False), "selective", Training()))
    ['down', 'gate', 'lse', 'mixed', 'q', 'v']
    >>> sorted(kept_tensors(writer.layer(False), "keep=o+mixed", Training()))
    ['lse', 'mixed', 'o']
    """
    if policy == "full":
        return set()
    named = kept_names(policy)
    if named is not None:
        return {t for op in layer.forward if op.name in named for t in _lasting(op)}
    kept: set[str] = set()
    read = {t for op in layer.backward if op.kind in ("product", "attention") for t in op.reads}
    products = 0
    for op in layer.forward:
        counts = op.kind == "product" and not _is_routed(op)
        products += counts
        if is_gathered_again(op, training):
            keeps = False
        elif policy == "core":
            keeps = op.kind != "core"
        elif policy == "none":
            fused = training.compiled and op.kind in ("pointwise", "complex")
            keeps = not fused or bool(read & set(op.writes))
        else:
            keeps = (counts and products % 2 == 1) or op.kind in ("attention", "scatter")
        if keeps:
            kept |= _lasting(op)
    return kept


def is_gathered_again(op: RankOp, training: Training) -> bool:
    """Whether a backward gathers anew what `op` has; tokens are sent to their experts once."""
    return training.regather and op.kind == "gather" and op.stream != "expert"


def _is_routed(op: RankOp) -> bool:
    """Whether a product is the router's, or one of the routed experts."""
    return op.name == "scores" or op.name.startswith("e.")


def _lasting(op: RankOp) -> set[str]:
    """The tensors that an op writes and does not drop itself."""
    return {t for t in op.writes if t != "kv.whole" and not t.endswith(COPY)}


def offloaded_tensors(layer: LayerOps, policy: str, training: Training) -> list[str]:
    """The tensors that an offloaded layer with `policy` copies to the host and back, in order.

    These are its input and what it keeps, as far as its backward reads them, or what runs again.
    """
    kept = kept_tensors(layer, policy, training)
    again = repeated_ops(layer, kept, training)
    read = {t for op in (*again, *layer.backward) for t in op.reads}
    return ["x"] * ("x" in read) + sorted((kept & read) - {layer.output})


def check_kept_names(
    model: Architecture, degrees: Degrees, training: Training, fabric: Fabric
) -> None:
    """Raise `SchedsimError` where ``--recompute keep=`` names an op that no layer has."""
    parts = training.recompute.count("/") + 1
    policies = {p for rank in range(parts) for p in training.policies(model.num_layers, rank)}
    bases = [split_host(policy)[0] for policy in policies]
    named = {name for policy in bases for name in kept_names(policy) or ()}
    if not named:
        return
    known: dict[str, None] = {}
    for experts in {model.has_experts(i) for i in range(model.num_layers)}:
        layer = LayerWriter(model, degrees, training, training.seq, fabric).layer(experts)
        known |= dict.fromkeys(op.name for op in layer.forward)
    for name in sorted(named):
        if name not in known:
            raise SchedsimError(
                f"--recompute keep={name}: no layer of {model.name} has such an op",
                hint=did_you_mean(name, known, f"one of {', '.join(known)}"),
            )


def as_needed(
    again: Sequence[RankOp], backward: Sequence[RankOp], *, anew: bool = True
) -> list[tuple[RankOp, bool]]:
    """The backward with each op that runs `again` right before the first one that needs it.

    torch.compile orders the backward of its code so, and torchtitan's GraphTrainer its graph.
    Compiled code writes what attention reads `anew` for each of its kernels: pointwise inputs of an
    attention that runs again are made twice. The flag says which ops run again.
    """
    made = {tensor: op for op in again for tensor in op.writes}
    done: set[str] = set()
    found: list[tuple[RankOp, bool]] = []

    def run(op: RankOp, is_again: bool) -> None:
        for tensor in op.reads:
            source = made.get(tensor)
            if source is not None and source.name not in done:
                run(source, True)
        if is_again:
            done.add(op.name)
            if anew and op.kind == "attention":
                sources = [made[tensor] for tensor in op.reads if tensor in made]
                done.difference_update(one.name for one in sources if one.kind == "pointwise")
        found.append((op, is_again))

    for op in backward:
        run(op, False)
    return found


def repeated_ops(layer: LayerOps, kept: set[str], training: Training) -> list[RankOp]:
    """Ops of the forward that run again before the backward, in order.

    In a graph, those that the backward needs. Eager, every op up to the last one that it needs, but
    for those whose outputs are kept: a checkpoint runs the forward as it is written.
    """
    made = {tensor: op for op in layer.forward for tensor in op.writes}
    needed = {t for op in layer.backward for t in op.reads if t in made and t not in kept}
    again: set[str] = set()
    last = -1
    for k in reversed(range(len(layer.forward))):
        op = layer.forward[k]
        if needed & set(op.writes):
            last = max(last, k)
            again.add(op.name)
            needed |= {t for t in op.reads if t in made and t not in kept}
    if training.is_graph:
        return [op for op in layer.forward if op.name in again]
    ran = layer.forward[: last + 1]
    return [op for op in ran if op.name in again or not kept.issuperset(_lasting(op))]
