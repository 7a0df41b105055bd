"""What the relaxation of some cuts misses: first runs at which it has no room, and intervals.

Both look at the relaxed point alone, and take far less time than a step of any solver. They choose
what the next relaxation looks at; its bound holds for any choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.cached import njit

from ._cut_table import Bools, Cut, CutTable, Floats

# Parts of a run or of a tensor that do not count: first-order methods leave such parts everywhere.
_TRACE = 0.02
_SMALL = 0.01


@dataclass(frozen=True, eq=False)
class RelaxedPoint:
    """The point that the relaxation of some cuts came to.

    Attributes
    ----------
    cuts
        The cuts by the order of their first runs.
    alive : (num_cuts, num_tensors)
        How much of each tensor is alive during the first run at each cut.
    again : (num_cuts, num_ops)
        How much of each op runs again between a cut and the next one, or the end.
    """

    cuts: list[Cut]
    alive: Floats
    again: Floats


def excess_bytes(table: CutTable, point: RelaxedPoint) -> Floats:
    """By how much the memory of `point` is above the room at each op's first run, ``(num_ops,)``.

    Between two cuts the point says what runs again, and not when. Here a repeated run stands just
    before its output is needed, by a first run or by another repeated one, and its output stays
    until the last of them. What was written since the cut before is counted as long as it is read.
    Minus infinity at the cuts. O(cuts (ops + tensors) + reads), whatever the order of first runs:
    the graph's order stands for all.
    """
    arrays = table.graph.arrays
    num_ops = table.num_ops
    places = np.array([cut.op for cut in point.cuts], dtype=np.int64)
    last = np.full(table.num_tensors, -1, dtype=np.int64)
    np.maximum.at(last, arrays.read_tensor, table.readers)
    last[arrays.tensor_result] = num_ops
    used = _used_bytes(
        places,
        (point.alive, point.again),
        (arrays.read_start, arrays.read_tensor),
        (arrays.write_start, arrays.write_tensor),
        (arrays.tensor_producer, arrays.tensor_bytes, last, arrays.tensor_result),
    )
    room = table.budget_bytes - table.graph.static_bytes - table.own_bytes
    found: Floats = used - room
    found[places] = -np.inf
    return found


@njit(cache=True)
def _used_bytes(
    places: NDArray[np.int64],
    point: tuple[NDArray[np.float64], NDArray[np.float64]],
    reads: tuple[NDArray[np.int64], NDArray[np.int64]],
    writes: tuple[NDArray[np.int64], NDArray[np.int64]],
    tensors: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Bytes beside the op's own during the first run of each op between the cuts at `places`."""
    alive, again = point
    read_start, read_tensor = reads
    write_start, write_tensor = writes
    producer, size, last, result = tensors
    num_ops, num_tensors, num_cuts = read_start.size - 1, producer.size, places.size
    used = np.zeros(num_ops)
    never = num_ops + 1
    first = np.empty(num_tensors, np.int64)  # where a tensor is needed first, by what is repeated
    until = np.empty(num_tensors, np.int64)  # where a first run in the interval reads it last
    lasts = np.empty(num_tensors, np.int64)  # where a repeated run reads it last
    part = np.empty(num_tensors)  # the largest part of a repeated run that reads it
    change = np.empty(num_ops + 2)
    for i in range(num_cuts + 1):
        low = places[i - 1] if i > 0 else -1
        high = places[i] if i < num_cuts else num_ops
        if high - low < 2:
            continue
        first[:] = never
        until[:] = -1
        lasts[:] = -1
        part[:] = 0.0
        for op in range(low + 1, min(high + 1, num_ops)):
            for r in range(read_start[op], read_start[op + 1]):
                u = read_tensor[r]
                first[u] = min(first[u], op)
                until[u] = op
        if i == num_cuts:
            for w in range(num_tensors):
                if result[w]:
                    first[w] = min(first[w], num_ops)
                    until[w] = num_ops
        if i > 0:
            for op in range(low, -1, -1):
                amount = again[i - 1, op]
                if amount <= _TRACE:
                    continue
                needed = never
                for k in range(write_start[op], write_start[op + 1]):
                    w = write_tensor[k]
                    needed = min(needed, first[w])
                    if i < num_cuts and alive[i, w] > _TRACE:
                        needed = min(needed, high)
                for r in range(read_start[op], read_start[op + 1]):
                    u = read_tensor[r]
                    first[u] = min(first[u], needed)
                    if needed < never:
                        lasts[u] = max(lasts[u], needed)
                    part[u] = max(part[u], amount)
        change[:] = 0.0
        for w in range(num_tensors):
            p = producer[w]
            if p >= high or size[w] == 0:
                continue
            if p < 0:
                stop = min(max(last[w], low + 1), high)
                change[low + 1] += size[w]
                change[stop] -= size[w]
                continue
            end = alive[i, w] if i < num_cuts else 0.0
            at = max(p, low) + 1
            if p <= low:
                rerun = again[i - 1, p]
                before = max(0.0, end - rerun)
                if until[w] >= 0:
                    before = max(before, 1.0 - rerun)
                if lasts[w] >= 0:
                    before = max(before, part[w] - rerun)
                stop = min(max(first[w], at), high)
                change[at] += before * size[w]
                change[stop] -= before * size[w]
                at = stop
            stop = min(max(until[w], at), high)
            change[at] += size[w]
            change[stop] -= size[w]
            at = stop
            stop = min(max(lasts[w], at), high)
            level = max(part[w], end) if first[w] < never else end
            change[at] += level * size[w]
            change[stop] -= level * size[w]
            if p > low or first[w] < never:
                change[stop] += end * size[w]
                change[high] -= end * size[w]
        total = 0.0
        for op in range(low + 1, high):
            total += change[op]
            own = 0.0
            for r in range(read_start[op], read_start[op + 1]):
                u = read_tensor[r]
                # What the op reads is among its own bytes; if it is read later, it was counted.
                if until[u] > op or (producer[u] < 0 and last[u] > op):
                    own += size[u]
                elif first[u] < never:
                    kept = alive[i, u] if i < num_cuts else 0.0
                    own += size[u] * (max(part[u], kept) if lasts[u] > op else kept)
            used[op] = total - own
    return used


def missing_intervals(
    table: CutTable, point: RelaxedPoint, costs: Floats, known: set[tuple[int, int]]
) -> list[tuple[float, int, int]]:
    """Pairs of cuts that are no neighbours, between which `point` does not do what is needed.

    Each comes as (deficit, k, l), by the places of cuts, and is not in `known`; the largest deficit
    comes first. The deficit is the cost of what is missing where as much runs again between the two
    cuts as between all neighbours from the one to the other. That is the most there may be, so that
    without a deficit the interval adds nothing.

    O(cuts^2 (ops + tensors + reads)).
    """
    arrays = table.graph.arrays
    num_cuts = len(point.cuts)
    ran = []
    for cut in point.cuts:
        ran.append(cut.before.copy())
        ran[-1][cut.op] = True
    so_far = np.concatenate([np.zeros((1, table.num_ops)), np.cumsum(point.again, axis=0)])
    dead = np.zeros(table.num_tensors)
    found = []
    for k in range(num_cuts):
        for end in range(k + 2, num_cuts + 1):
            if (k, end) in known:
                continue
            if end < num_cuts:
                need: Bools = np.zeros(table.num_tensors, dtype=np.bool_)
                need[arrays.read_tensor[(point.cuts[k].after & ran[end])[table.readers]]] = True
            else:
                need = table.needed(point.cuts[k].after)
            deficit = _deficit(
                np.minimum(1.0, so_far[end] - so_far[k]),
                ran[k],
                (point.alive[k], point.alive[end] if end < num_cuts else dead),
                need,
                (arrays.read_start, arrays.read_tensor, arrays.tensor_producer),
                costs,
            )
            if deficit > 0:
                found.append((deficit, k, end))
    return sorted(found, key=lambda one: (-one[0], one[1:]))


@njit(cache=True)
def _deficit(
    most: NDArray[np.float64],
    known: NDArray[np.bool_],
    alive: tuple[NDArray[np.float64], NDArray[np.float64]],
    need: NDArray[np.bool_],
    graph: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    costs: NDArray[np.float64],
) -> float:
    """The cost of what is missing; `most` becomes the most of each op that may run again."""
    begin, end = alive
    read_start, read_tensor, producer = graph
    for op in range(most.size):
        if not known[op]:
            most[op] = 0.0
            continue
        for r in range(read_start[op], read_start[op + 1]):
            u = read_tensor[r]
            if producer[u] >= 0:
                most[op] = min(most[op], begin[u] + most[producer[u]])
    found = 0.0
    for w in range(producer.size):
        p = producer[w]
        if p >= 0 and known[p]:
            missing = (1.0 if need[w] else end[w]) - begin[w] - most[p]
            if missing > _SMALL:
                found += missing * costs[p]
    return found
