"""From a program to the program that runs compiled, whose calls are groups and kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from ..capture.program import Call, Program, Ref, refs
from ..costs.lazy_bits import lazy_bits
from .channels_last import with_channels_last
from .clusters import FusionClusters
from .counters import raise_in_place
from .dead_ops import drop_dead_ops
from .decompose import decompose
from .gradient_kernels import split_gradients
from .group import Groups
from .group_sizes import GroupSize
from .halves import keep_halves
from .inline import inline_beside, inline_cheap
from .takeover import takeover
from .widen import widen_in_backward
from .zero_gradients import with_zero_gradients


def fused(program: Program, groups: Groups, *, size: GroupSize = GroupSize.LARGE) -> Program:
    """`program` with its fusible ops in groups; its results are the same within rounding.

    A group is one call: it has only its true outputs, and no tensor between its ops. O(n^2) at
    worst in the number of ops, some milliseconds for hundreds of ops.

    Parameters
    ----------
    size
        Below `GroupSize.LARGE` for budgets that these do not fit.
    """
    return _assembled(*_in_clusters(program, size), groups)


def fused_without(
    program: Program, lacking: Collection[int], groups: Groups, *, size: GroupSize
) -> Program | None:
    """`program` in the groups of `fused`, for zeros as the given gradients at `lacking`.

    ``None`` if ops other than groups would read them.
    """
    parts, clusters = _in_clusters(program, size)
    zeroed = with_zero_gradients(parts, lacking)
    return None if zeroed is None else _assembled(zeroed, clusters, groups)


def _in_clusters(program: Program, size: GroupSize) -> tuple[Program, FusionClusters]:
    """The ops of `program` one by one, and which of them become one group."""
    parts = with_channels_last(split_gradients(decompose(program)))
    inline_cheap(parts)
    widen_in_backward(parts)
    raise_in_place(parts)
    drop_dead_ops(parts)
    clusters = _clustered(parts, size)
    if inline_beside(parts, clusters):
        drop_dead_ops(parts)
        clusters = _clustered(parts, size)
    return parts, clusters


def _clustered(parts: Program, size: GroupSize) -> FusionClusters:
    clusters = FusionClusters(parts, size=size)
    clusters.merge_vanishing()
    clusters.merge_reductions()
    clusters.merge_updates()
    return clusters


def _assembled(parts: Program, clusters: FusionClusters, groups: Groups) -> Program:
    """The program whose calls are the clusters of `parts`, with views behind their sources."""
    views = [i for i, call in enumerate(parts.calls) if call.is_view]
    order = clusters.ordered()
    calls: list[Call] = []
    moved: dict[int, int] = {}  # old op -> new call
    values = [replace(value, call=-1) for value in parts.values]
    storages = [replace(storage, call=-1) for storage in parts.storages]
    new = replace(parts, values=values, storages=storages, calls=calls)
    of_storage: dict[int, list[int]] = {}  # storage -> views of it, old calls
    for i in views:
        of_storage.setdefault(parts.values[parts.calls[i].outputs[0]].storage, []).append(i)

    def put_views(storage: int) -> None:
        for i in of_storage.get(storage, ()):
            new.append(replace(parts.calls[i]))

    for index, made in enumerate(parts.storages):
        if made.call < 0:
            put_views(index)
    for ops in order:
        inside = _escaping(parts, clusters, ops)
        fuses = all(map(clusters.can_fuse, ops))
        if not fuses or _is_lone_comparison(parts, inside.calls):
            new.append(replace(parts.calls[ops[0]]))
        else:
            group, inputs = groups.make(parts, inside.calls, inside.outputs)
            last = parts.calls[ops[-1]]
            position, over = takeover(parts, inside.calls, inputs, inside.outputs, clusters.results)
            taken = position >= 0
            new.append(
                Call(
                    f"{last.name.rpartition('.')[0] or last.name}+{ops[-1]}",
                    group,
                    tuple(Ref(v) for v in inputs),
                    {},
                    outputs=list(inside.outputs),
                    is_tuple=len(inside.outputs) > 1,
                    phase=last.phase,
                    once=any(parts.calls[op].once for op in ops),
                    module=last.module,
                    takes_over=inputs[position] if taken else -1,
                    over=over,
                    overwriting=group.overwriting(position, over) if taken else None,
                ),
            )
        for op in ops:
            moved[op] = len(calls) - 1
        for storage in dict.fromkeys(parts.values[v].storage for v in inside.outputs):
            put_views(storage)
    for call in calls:
        call.tokens = tuple(moved[token] for token in call.tokens)
    new.seed = moved[parts.seed]
    keep_halves(new)
    return new


def _is_lone_comparison(parts: Program, calls: list[int]) -> bool:
    """Whether a group would be one op that makes booleans on a CPU.

    Inductor's loops store these one by one: 24 times as long as PyTorch's own kernel takes.
    """
    made = [parts.values[v] for call in calls for v in parts.calls[call].outputs]
    return len(calls) == 1 and all(v.dtype is torch.bool and v.device.type == "cpu" for v in made)


class _Escaping:
    def __init__(self, calls: list[int], outputs: list[int]) -> None:
        self.calls, self.outputs = calls, outputs


def _escaping(parts: Program, clusters: FusionClusters, ops: list[int]) -> _Escaping:
    """The calls of a cluster with the views that they look through, and the values leaving it."""
    reading, values = clusters.reading, parts.values
    inside = set(ops)
    outputs = []
    for op in ops:
        for v in parts.calls[op].outputs:
            storage = values[v].storage if v >= 0 else -1
            outside = any(r not in inside for r in reading.readers.get(storage, ()))
            if v >= 0 and (outside or storage in clusters.results or not clusters.can_fuse(op)):
                outputs.append(v)
    own = {values[v].storage for op in ops for v in parts.calls[op].outputs if v >= 0}
    found = dict.fromkeys(ops)
    stack = [v for op in ops for v in refs((parts.calls[op].args, parts.calls[op].kwargs))]
    while stack:
        v = stack.pop()
        maker = values[v].call
        is_view = maker >= 0 and parts.calls[maker].is_view
        # A loop reads memory: that an argument is negated later is for it to know.
        looks = is_view and (values[v].storage in own or any(lazy_bits(parts, v)))
        if looks and maker not in found:
            found[maker] = None
            stack += refs((parts.calls[maker].args, parts.calls[maker].kwargs))
    return _Escaping(sorted(found), outputs)
