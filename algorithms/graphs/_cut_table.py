"""Cuts of a step at the first run of one op: what must be alive or recomputed across the cut.

Take any schedule, and in it the first run of op t. A tensor that was written before that run and is
read by an op whose first run comes later is either alive during that run, or its producer runs
again afterwards. The tensors alive fit in what the budget leaves beside t's own tensors. So the
cheapest way to evict the rest bounds the time of recomputation from below.

With a fixed order of first runs, "before" and "after" are places in that order; in any order they
are the ancestors and the descendants of t, because their first runs always lie on these sides of
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.footprint import least_own_bytes, own_bytes
from schedsim.dataflow.graph import Graph
from schedsim.kernels.cached import njit

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Order = Literal["fixed", "free"]
ORDERS: tuple[Order, ...] = ("fixed", "free")

# Prices per byte tried for all ops at once; the few best ops are then solved exactly.
_NUM_PRICES = 64


@dataclass(frozen=True)
class Cut:
    """The first run of one op, seen as a border between the runs before and after it.

    Attributes
    ----------
    op
        Index of the op.
    before, after : (num_ops,) bool
        Ops whose first run surely comes before that of `op`, or after it.
    room_bytes
        Bytes that the budget leaves for the tensors in `charged_bytes`; negative where nothing
        fits.
    charged_bytes : (num_tensors,) int64
        Bytes of a tensor that is alive during the run; 0 for the op's own and for the graph's
        inputs, which `room_bytes` has paid for.
    given : (num_tensors,) bool
        Tensors alive during the run in every schedule: the op's inputs and outputs, graph inputs.
    """

    op: int
    before: Bools
    after: Bools
    room_bytes: int
    charged_bytes: Ints
    given: Bools


class CutTable:
    """Cuts of one graph at one budget.

    Building the table is O(ops + tensors + reads), and so is every cut.
    """

    def __init__(self, graph: Graph, budget_bytes: int, order: Order) -> None:
        self.graph, self.budget_bytes, self.order = graph, budget_bytes, order
        arrays = graph.arrays
        self.num_ops, self.num_tensors = graph.num_ops, arrays.tensor_bytes.size
        self.readers = np.repeat(np.arange(self.num_ops), np.diff(arrays.read_start))
        self.own_bytes = own_bytes(graph)

    def cut(self, op: int) -> Cut:
        """The cut at the first run of `op`."""
        arrays = self.graph.arrays
        turns = np.arange(self.num_ops)
        if self.order == "fixed":
            before, after = turns < op, turns > op
        else:
            before, after = _relatives(
                op, arrays.read_start, arrays.read_tensor, arrays.tensor_producer
            )
        reads = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]
        writes = arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
        producer = arrays.tensor_producer
        inputs = producer < 0
        needed = self.needed(after)
        given = inputs.copy()
        given[reads] = True
        given[writes[~arrays.tensor_optional[writes]]] = True
        held = inputs & needed
        held[reads] = False
        room = self.budget_bytes - self.graph.static_bytes - int(self.own_bytes[op])
        room -= int(arrays.tensor_bytes[held].sum())
        charged = np.where(given, 0, arrays.tensor_bytes)
        for tensor in writes[arrays.tensor_takes_over[writes] >= 0].tolist():
            source = int(arrays.tensor_takes_over[tensor])
            shared = int(min(arrays.tensor_bytes[tensor], arrays.tensor_bytes[source]))
            if needed[source] and (producer[source] < 0 or arrays.op_once[producer[source]]):
                continue  # it is read later and cannot be recomputed
            if arrays.tensor_optional[tensor]:
                charged[tensor] -= shared
            else:
                room += shared
        return Cut(op, before, after, room, charged, given)

    @cached_property
    def rooms_bytes(self) -> Ints:
        """Bytes that the budget leaves beside any run of each op; negative where none fits.

        All storage is taken over that can be.
        """
        return self.budget_bytes - self.graph.static_bytes - least_own_bytes(self.graph)

    def needed(self, after: Bools) -> Bools:
        """Tensors that an op in `after` reads, or that are results; shape ``(num_tensors,)``."""
        arrays = self.graph.arrays
        needed = arrays.tensor_result.copy()
        needed[arrays.read_tensor[after[self.readers]]] = True
        return needed

    def first_readers(self, op: int) -> Ints:
        """The first op behind `op` that reads each tensor; ``num_ops`` where none does."""
        reads = self.graph.arrays.read_tensor
        found = np.full(self.num_tensors, self.num_ops, dtype=np.int64)
        later = self.readers > op
        np.minimum.at(found, reads[later], self.readers[later])
        return found

    def useful(self, known: Bools) -> tuple[Bools, Bools]:
        """What an op that is not in `known` may need, itself or through repeated runs.

        Returns
        -------
        (num_tensors,) bool
            Tensors that are read or are results, or from which such a one can be made again.
        (num_ops,) bool
            Ops in `known` that write such a tensor.
        """
        arrays = self.graph.arrays
        return _useful(
            known,
            self.needed(~known),
            (arrays.read_start, arrays.read_tensor),
            (arrays.write_start, arrays.write_tensor),
        )


@njit(cache=True)
def _useful(
    known: NDArray[np.bool_],
    needed: NDArray[np.bool_],
    reads: tuple[NDArray[np.int64], NDArray[np.int64]],
    writes: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Adds to `needed` what its producers in `known` read; O(ops + tensors + reads)."""
    read_start, read_tensor = reads
    write_start, write_tensor = writes
    makers = np.zeros(known.size, np.bool_)
    for op in range(known.size - 1, -1, -1):
        if not known[op]:
            continue
        for w in range(write_start[op], write_start[op + 1]):
            makers[op] |= needed[write_tensor[w]]
        if makers[op]:
            for r in range(read_start[op], read_start[op + 1]):
                needed[read_tensor[r]] = True
    return needed, makers


@njit(cache=True)
def _relatives(
    op: int,
    read_start: NDArray[np.int64],
    read_tensor: NDArray[np.int64],
    tensor_producer: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the ancestors and of the descendants of `op`; O(reads)."""
    num_ops = read_start.size - 1
    ancestor = np.zeros(num_ops, np.bool_)
    descendant = np.zeros(num_ops, np.bool_)
    for i in range(op, -1, -1):
        if i == op or ancestor[i]:
            for r in range(read_start[i], read_start[i + 1]):
                producer = tensor_producer[read_tensor[r]]
                if producer >= 0:
                    ancestor[producer] = True
    for i in range(op + 1, num_ops):
        for r in range(read_start[i], read_start[i + 1]):
            producer = tensor_producer[read_tensor[r]]
            if producer >= 0 and (producer == op or descendant[producer]):
                descendant[i] = True
                break
    return ancestor, descendant


def tensor_costs(graph: Graph, costs: Floats) -> Floats:
    """The least cost of dropping each tensor, shape ``(num_tensors,)``; infinite for some tensors.

    The cost of an op is divided among its outputs in proportion to their bytes, so that any set of
    outputs costs no more than the op.
    """
    arrays = graph.arrays
    producer = arrays.tensor_producer
    made = producer >= 0
    total = np.zeros(graph.num_ops)
    np.add.at(total, producer[made], arrays.tensor_bytes[made])
    cost = np.full(producer.size, np.inf)
    again = made & ~arrays.op_once[producer]
    share = arrays.tensor_bytes[again] / np.maximum(total[producer[again]], 1)
    cost[again] = costs[producer[again]] * share
    return cost


def prices(cost: Floats, size: Ints) -> Floats:
    """Prices per byte worth trying: quantiles of the tensors' own prices, by bytes; ascending."""
    real = np.flatnonzero((size > 0) & np.isfinite(cost))
    if not real.size:
        return np.ones(1)
    rate = cost[real] / size[real]
    order = np.argsort(rate)
    weight = np.cumsum(size[real][order], dtype=np.float64)
    at = np.searchsorted(weight, np.linspace(0.0, weight[-1], _NUM_PRICES))
    found = np.unique(rate[order][np.minimum(at, real.size - 1)])
    # Beyond the price of the dearest tensor, only what cannot be recomputed counts.
    return np.append(found[found > 0], max(1.0, 2 * float(rate.max())))


def fixed_order_bounds(graph: Graph, budget_bytes: int, costs: Floats) -> Floats:
    """A bound on recomputation from the cut at each op, in the graph's order, ``(num_ops,)``.

    For a price per byte y, every tensor that crosses the cut costs at least the smaller of y times
    its bytes and its producer's run; y times the room is free. The best of several prices is taken:
    a fractional knapsack up to their resolution. What recomputation itself reads is ignored.

    O(prices (ops + tensors + reads)).
    """
    arrays = graph.arrays
    num_ops, size = graph.num_ops, arrays.tensor_bytes
    readers = np.repeat(np.arange(num_ops), np.diff(arrays.read_start))
    last = np.full(size.size, -1, dtype=np.int64)
    np.maximum.at(last, arrays.read_tensor, readers)
    last[arrays.tensor_result] = num_ops
    # A tensor crosses the cuts from `first` to `last` - 1, except for those at its readers.
    first = arrays.tensor_producer + 1
    first[arrays.tensor_optional] -= 1
    crosses = last > first
    last = np.where(crosses, last, first)
    inside = readers < last[arrays.read_tensor]
    inside_reader, inside_tensor = readers[inside], arrays.read_tensor[inside]

    room = (budget_bytes - graph.static_bytes - own_bytes(graph)).astype(np.float64)
    charged = size.astype(np.float64)
    takes = np.flatnonzero(arrays.tensor_takes_over >= 0)
    shared = np.minimum(size[takes], size[arrays.tensor_takes_over[takes]])
    np.add.at(room, arrays.tensor_producer[takes], shared)

    cost = tensor_costs(graph, costs)
    best = np.zeros(num_ops)
    for price in prices(cost, size):
        value = np.minimum(cost, price * charged)
        change = np.bincount(first, value, num_ops + 1) - np.bincount(last, value, num_ops + 1)
        across = np.cumsum(change)[:num_ops]
        across -= np.bincount(inside_reader, value[inside_tensor], num_ops)
        np.maximum(best, across - price * room, out=best)
    return best


def cut_bound(table: CutTable, cut: Cut, costs: Floats) -> float:
    """The fractional knapsack of one cut, exactly; infinite where nothing fits. O(tensors log)."""
    arrays = table.graph.arrays
    known = cut.before.copy()
    known[cut.op] = True
    crosses = table.needed(cut.after) & (cut.charged_bytes > 0)
    crosses &= known[arrays.tensor_producer]
    size = cut.charged_bytes[crosses].astype(np.float64)
    excess = float(size.sum()) - cut.room_bytes
    if excess <= 0:
        return 0.0
    cost = tensor_costs(table.graph, costs)[crosses]
    order = np.argsort(cost / size)
    size, cost = size[order], cost[order]
    taken = np.minimum(size, np.maximum(0.0, excess - (np.cumsum(size) - size)))
    if taken.sum() < excess * (1 - 1e-12):
        return float("inf")
    used = taken > 0
    return float((taken[used] / size[used] * cost[used]).sum())
