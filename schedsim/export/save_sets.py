"""Save sets over the op graph of a step: the forward ops whose outputs are kept for the
backward."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..dataflow.graph import Graph
from ..errors import UnsupportedError
from ..plans.plan import Plan
from ..simulation.schedule import Schedule
from .choice import Choice, own_runs

_NAME = re.compile(r"(?:grad\.)?(?P<layer>.*?\d+)\.(?P<kind>[^#']+)'?(?:#\d+)?")


@dataclass(frozen=True)
class Layers:
    """The layers of a graph: ops by layer and kind.

    Attributes
    ----------
    names : tuple of str
        First to last.
    forward : dict
        Layer -> {kind: index of its forward op}, in order.
    backward : dict
        Layer -> indices of its backward ops, in order.
    kinds : tuple of str
        Kinds of forward ops that every layer has, in order.
    """

    names: tuple[str, ...]
    forward: dict[str, dict[str, int]]
    backward: dict[str, list[int]]
    kinds: tuple[str, ...]


def find_layers(graph: Graph, target: str) -> Layers:
    """The layers of `graph`, from op names such as ``layer3.mlp.up`` and ``layer3.mlp.up'``.

    Raises
    ------
    UnsupportedError
        Fewer than two layers have a forward and a backward.
    """
    forward: dict[str, dict[str, int]] = {}
    backward: dict[str, list[int]] = {}
    for i, op in enumerate(graph.ops):
        match = _NAME.fullmatch(op.name)
        if match is None:
            continue
        layer = match["layer"]
        if op.phase == "forward":
            kinds = forward.setdefault(layer, {})
            kind, again = match["kind"], 2
            while kind in kinds:  # number the n-th op of its kind in the layer
                kind, again = f"{match['kind']}#{again}", again + 1
            kinds[kind] = i
        elif op.phase == "backward":
            backward.setdefault(layer, []).append(i)
    names = tuple(name for name in forward if name in backward)
    # Layers have names that differ only by a number; the largest such family counts.
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(re.sub(r"\d+$", "#", name), []).append(name)
    longest = max(families.values(), key=lambda family: len(family)) if families else []
    chosen = tuple(longest)
    if len(chosen) < 2:
        raise UnsupportedError(
            f"{target} saves by layer, and the ops of {graph.name} name no layers",
            hint="ops of layers have names like layer0.mlp.up, or the names of their modules",
        )
    first = forward[chosen[0]]
    shared = tuple(kind for kind in first if all(kind in forward[name] for name in chosen))
    return Layers(chosen, forward, backward, shared)


SaveSets = Sequence[Collection[str] | None]
"""For each layer, the kinds whose outputs it keeps; ``None`` if it is not checkpointed."""


def layer_schedule(graph: Graph, layers: Layers, sets: SaveSets) -> Schedule:
    """The schedule with checkpointed layers, each keeping the outputs of the kinds in its set.

    When the backward of a checkpointed layer begins, its other forward ops run again, in order, up
    to the last one that the backward reads, as in selective checkpointing.
    """
    arrays = graph.arrays
    read_later = {
        int(t)
        for i, op in enumerate(graph.ops)
        if op.phase == "backward"
        for t in arrays.read_tensor[arrays.read_start[i] : arrays.read_start[i + 1]]
    }
    again: dict[int, list[int]] = {}
    for name, saved in zip(layers.names, sets, strict=True):
        if saved is None:
            continue
        ops = [
            i
            for kind, i in layers.forward[name].items()
            if kind not in saved and not graph.ops[i].once
        ]
        while ops and not _writes_any(graph, ops[-1], read_later):
            ops.pop()
        again[layers.backward[name][0]] = ops
    runs: list[int] = []
    for i in range(graph.num_ops):
        runs += again.get(i, [])
        runs.append(i)
    return Schedule(graph.op_names, runs)


def _writes_any(graph: Graph, op: int, tensors: set[int]) -> bool:
    arrays = graph.arrays
    written = arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
    return not tensors.isdisjoint(written.tolist())


def on_demand_schedule(graph: Graph, saved: Collection[int]) -> Schedule:
    """The schedule in which forward ops outside `saved` run again for their first backward reader.

    A recomputed tensor stays for its later readers. A save set does not define an order; this is
    the order of a partitioned backward.
    """
    arrays = graph.arrays
    reads = [
        arrays.read_tensor[arrays.read_start[i] : arrays.read_start[i + 1]].tolist()
        for i in range(graph.num_ops)
    ]
    producer = arrays.tensor_producer.tolist()
    again = {i for i, op in enumerate(graph.ops) if op.phase == "forward" and not op.once} - set(
        saved
    )
    runs: list[int] = []
    for i, op in enumerate(graph.ops):
        if op.phase == "backward":
            needed: set[int] = set()
            stack = [producer[t] for t in reads[i]]
            while stack:
                made = stack.pop()
                if made in again and made not in needed:
                    needed.add(made)
                    stack += [producer[t] for t in reads[made]]
            again -= needed
            runs += sorted(needed)
        runs.append(i)
    return Schedule(graph.op_names, runs)


def kept_kinds(graph: Graph, layers: Layers, plan: Plan) -> frozenset[str]:
    """Kinds of ops that the plan runs once in most layers."""
    assert plan.schedule is not None
    counts = _counts(graph, plan)
    kept = set()
    for kind in layers.kinds:
        once = sum(counts[layers.forward[name][kind]] == 1 for name in layers.names)
        if 2 * once > len(layers.names):
            kept.add(kind)
    return frozenset(kept)


def kept_ops(graph: Graph, plan: Plan) -> list[int]:
    """Forward ops that the plan runs once."""
    counts = _counts(graph, plan)
    return [i for i, op in enumerate(graph.ops) if op.phase == "forward" and counts[i] == 1]


def _counts(graph: Graph, plan: Plan) -> list[int]:
    found: list[int] = np.bincount(own_runs(graph, plan), minlength=graph.num_ops).tolist()
    return found


INPUT = "input"
"""A kind that may be held on the host: the input of a layer."""


def as_choice(
    graph: Graph,
    layers: Layers,
    saved: Collection[str],
    num: int,
    host: Collection[str] = (),
    early: tuple[int, Collection[str]] = (0, ()),
) -> Choice:
    """A save set as a choice; saved tensors of the kinds in `host` are held in host memory.

    `early` is the number of first layers that keep other kinds, and these kinds. The first layers
    are special because their gradients come last, so their kept tensors live longest.
    """
    total = len(layers.names)
    kept = [kind for kind in layers.kinds if kind in saved]
    there = [kind for kind in (INPUT, *kept) if kind in host] if num else []
    what = f"saving {', '.join(kept)}" if kept else "saving their inputs alone"
    says = f"{num} of {total} layers checkpointed, {what}" if num else "nothing checkpointed"
    says += f"; in host memory: {', '.join(there)}" if there else ""
    first, others = early
    sets: list[Collection[str] | None] = [frozenset(kept)] * num + [None] * (total - num)
    if first:
        other = [kind for kind in layers.kinds if kind in others]
        sets[:first] = [frozenset(other)] * first
        says += f"; the first {first} saving {', '.join(other) or 'their inputs alone'}"
    data = {"saved": frozenset(kept), "num": num, "host": frozenset(there), "sets": sets}
    tensors = tuple(
        tensor
        for name, mine in zip(layers.names[:num], sets, strict=False)
        for kind in there
        if kind == INPUT or (mine is not None and kind in mine)
        for tensor in tensors_of(graph, layers, name, kind)
    )
    return Choice(layer_schedule(graph, layers, sets), says, data, tensors)


def early_choices(graph: Graph, layers: Layers, choice: Choice) -> Iterator[Choice]:
    """`choice` with one kind more or less saved in a part of its layers, the first of them."""
    saved, num, host = (choice.data[name] for name in ("saved", "num", "host"))
    for kind in layers.kinds:
        for first in sorted({num // 4, num // 2, 3 * num // 4} - {0}):
            yield as_choice(graph, layers, saved, num, host, (first, saved ^ {kind}))


def tensors_of(graph: Graph, layers: Layers, layer: str, kind: str) -> tuple[str, ...]:
    """Outputs of the ops of `kind` in `layer`; for `INPUT`, the tensors that the layer reads."""
    ops = layers.forward[layer]
    if kind != INPUT:
        return tuple(graph.ops[ops[kind]].writes)
    made = {tensor for i in ops.values() for tensor in graph.ops[i].writes}
    outside = (t for i in ops.values() for t in graph.ops[i].reads if t not in made)
    # The caller of the step holds its inputs.
    return tuple(t for t in dict.fromkeys(outside) if t not in graph.inputs)


def layer_choices(
    graph: Graph,
    layers: Layers,
    plan: Plan,
    kinds: Iterable[str] | None = None,
    *,
    offloads: bool = False,
) -> Iterator[Choice]:
    """Save sets to begin with: the plan's, none, and the kinds of highest time per byte.

    With `offloads`, and a plan with a link, each set also comes with everything in host memory.
    """
    linked = offloads and plan.setting.link is not None
    total = len(layers.names)
    allowed = set(layers.kinds if kinds is None else kinds)
    ranked = sorted(allowed, key=lambda kind: -_worth(graph, layers, kind))
    starts = [kept_kinds(graph, layers, plan) & allowed]
    starts += [frozenset(ranked[:count]) for count in range(len(ranked) + 1)]
    for saved in starts:
        for num in dict.fromkeys((total, 3 * total // 4, total // 2, total // 4, 0)):
            yield as_choice(graph, layers, saved, num)
            if linked:
                yield as_choice(graph, layers, saved, num, {INPUT, *saved})


def _worth(graph: Graph, layers: Layers, kind: str) -> float:
    op = graph.ops[layers.forward[layers.names[0]][kind]]
    return op.time_s / max(1, sum(op.writes.values()))


def layer_flips(
    graph: Graph,
    layers: Layers,
    choice: Choice,
    kinds: Iterable[str] | None = None,
    *,
    offloads: bool = False,
) -> Iterator[Choice]:
    """`choice` with one kind more or less saved, or one layer more or less checkpointed.

    With `offloads`, also `choice` with one kind more or less in host memory.
    """
    saved, num, host = (choice.data[name] for name in ("saved", "num", "host"))
    for kind in layers.kinds if kinds is None else kinds:
        yield as_choice(graph, layers, saved ^ {kind}, num, host)
    for step in (-8, -1, 1, 8):
        if 0 <= num + step <= len(layers.names):
            yield as_choice(graph, layers, saved, num + step, host)
    if offloads:
        for kind in (INPUT, *layers.kinds):
            if kind == INPUT or kind in saved:
                yield as_choice(graph, layers, saved, num, host ^ {kind})
