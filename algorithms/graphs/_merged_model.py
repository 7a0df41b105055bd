"""The best schedule that is left of a sequence of runs when some are left out, as a program.

First runs stay. For each other run a variable says whether it stays, and for each tensor and each
two neighbours among its writes and reads one says whether it is kept from the one to the other:

1. a run reads what is kept until then;
2. what is kept behind a run was written by it, or kept until then;
3. an instance ends before it is written again;
4. at every run, what is kept and what is written fits, with the run's workspace;
5. an output takes over the storage of an input, unless both are there: where the input is kept
   behind the run.

So memory is exact at all runs, repeated ones too, where no output is optional; otherwise the
program charges more than the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.kernels.cached import njit

from ._scaling import byte_units

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MergedModel:
    """The program min cost x with matrix x <= most and lb <= x <= ub; x is whole.

    Attributes
    ----------
    runs : (num_runs,)
        The sequence; its runs are the first variables.
    matrix : scipy.sparse.csc_array, (rows, variables)
    most : (rows,)
    cost, lb, ub : (variables,)
    op : (variables,)
        The op of a run, and the producer of what is kept; -1 for the graph's inputs, and for what
        follows from the others.
    events
        Tensors, places, and whether it is a write, of all writes and reads by tensor and place; and
        the variable of what is kept from there to the next, -1 where there is no next.
    shared : (2, variables that are left)
        The last variables are 1 where both of these two are: an op runs, and an input whose storage
        an output may take over is kept behind it.
    """

    runs: Ints
    matrix: Any
    most: Floats
    cost: Floats
    lb: Floats
    ub: Floats
    op: Ints
    events: tuple[Ints, Ints, Bools, Ints]
    shared: Ints

    @classmethod
    def of(cls, graph: Graph, budget_bytes: int, runs: Ints) -> MergedModel:
        """The program for `runs`; O(runs x tensors kept at a run)."""
        from scipy.sparse import csc_array

        arrays, num = graph.arrays, runs.size
        tensor, place, written = _events(graph, runs)
        follows = np.zeros(tensor.size, dtype=np.bool_)
        follows[1:] = tensor[1:] == tensor[:-1]
        kept = np.full(tensor.size, -1, dtype=np.int64)
        goes_on = np.flatnonzero(np.append(follows[1:], False))
        kept[goes_on] = num + np.arange(goes_on.size)
        before = np.where(follows, np.append([-1], kept[:-1]), -1)
        runs_of = np.where((place >= 0) & (place < num), place, -1)
        row: list[Ints] = []
        column: list[Ints] = []
        value: list[Floats] = []
        most: list[Floats] = []

        def add(count: int, limit: float, *terms: tuple[Ints, float]) -> None:
            begun = sum(part.size for part in most)
            for columns, factor in terms:
                there = np.flatnonzero(columns >= 0)
                row.append(begun + there)
                column.append(columns[there])
                value.append(np.full(there.size, factor))
            most.append(np.full(count, limit))

        reads = np.flatnonzero(~written & (runs_of >= 0))
        add(reads.size, 0.0, (runs_of[reads], 1.0), (before[reads], -1.0))
        again = np.flatnonzero(written & follows)
        add(again.size, 1.0, (runs_of[again], 1.0), (before[again], 1.0))
        made = np.where(written, runs_of, -1)
        some = goes_on[place[goes_on] >= 0]
        add(some.size, 0.0, (kept[some], 1.0), (made[some], -1.0), (before[some], -1.0))

        unit, _ = byte_units(arrays.tensor_bytes, budget_bytes)
        begun = sum(part.size for part in most)
        begin = place[goes_on] + 1
        spans = np.minimum(place[goes_on + 1], num - 1) + 1 - begin
        at = np.repeat(begin - np.cumsum(spans) + spans, spans) + np.arange(int(spans.sum()))
        row.append(begun + at)
        column.append(np.repeat(kept[goes_on], spans))
        value.append(np.repeat(arrays.tensor_bytes[tensor[goes_on]] / unit, spans))
        writes = np.flatnonzero(made >= 0)
        row.append(begun + made[writes])
        column.append(made[writes])
        value.append(arrays.tensor_bytes[tensor[writes]] / unit)
        row.append(begun + np.arange(num))
        column.append(np.arange(num))
        value.append(arrays.op_workspace_bytes[runs] / unit)
        most.append(np.full(num, (budget_bytes - graph.static_bytes) / unit))

        taker, source = _takers(graph, runs, tensor, place, written)
        less = np.minimum(arrays.tensor_bytes[tensor[taker]], arrays.tensor_bytes[tensor[source]])
        row.append(begun + place[taker])
        column.append(place[taker])
        value.append(-less / unit)
        both = np.flatnonzero(kept[source] >= 0)
        shared = np.stack([place[taker[both]], kept[source[both]]])
        also = num + goes_on.size + np.arange(both.size)
        row.append(begun + shared[0])
        column.append(also)
        value.append(less[both] / unit)
        add(both.size, 1.0, (shared[0], 1.0), (shared[1], 1.0), (also, -1.0))

        total = num + goes_on.size + both.size
        first = np.zeros(num, dtype=np.bool_)
        first[np.unique(runs, return_index=True)[1]] = True
        lb, cost = np.zeros(total), np.zeros(total)
        lb[:num] = first
        cost[:num] = np.where(first, 0.0, arrays.op_time_s[runs])
        lb[kept[goes_on[place[goes_on + 1] == num]]] = 1.0  # results stay
        shape = sum(part.size for part in most), total
        entries = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
        matrix = csc_array(entries, shape=shape)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return cls(
            runs=runs,
            matrix=matrix,
            most=np.concatenate(most),
            cost=cost,
            lb=lb,
            ub=np.ones(total),
            op=np.concatenate(
                [runs, arrays.tensor_producer[tensor[goes_on]], np.full(both.size, -1)]
            ),
            events=(tensor, place, written, kept),
            shared=shared,
        )

    def point(self, used: Bools) -> Floats:
        """The point of the schedule of the runs `used`: nothing is kept that is not read."""
        x = np.zeros(self.cost.size)
        x[: used.size] = used
        _keep(x, used, *self.events)
        x[x.size - self.shared.shape[1] :] = x[self.shared].min(axis=0)
        return x

    def fits(self, x: Floats) -> bool:
        """Whether `x` meets all rows."""
        slack = 1e-9 * np.maximum(1.0, np.abs(self.most))
        return bool((self.matrix @ x <= self.most + slack).all())


@njit(cache=True)
def _keep(x: Floats, used: Bools, tensor: Ints, place: Ints, written: Bools, kept: Ints) -> None:
    needed = False
    for j in range(tensor.size - 1, -1, -1):
        if kept[j] < 0:
            needed = False
        else:
            after = place[j + 1]
            if after == used.size or used[after]:
                needed = not written[j + 1]
            x[kept[j]] = 1.0 if needed else 0.0


def _events(graph: Graph, runs: Ints) -> tuple[Ints, Ints, Bools]:
    """Tensors, places and whether it is a write, by tensor and place.

    The graph's inputs are written before all runs, and results are read behind all.
    """
    arrays, num = graph.arrays, runs.size
    read_at, read = _spread(arrays.read_start, arrays.read_tensor, runs)
    write_at, write = _spread(arrays.write_start, arrays.write_tensor, runs)
    results = np.flatnonzero(arrays.tensor_result)
    given = np.intersect1d(np.flatnonzero(arrays.tensor_producer < 0), np.append(read, results))
    tensor = np.concatenate([given, write, read, results])
    place = np.concatenate(
        [np.full(given.size, -1), write_at, read_at, np.full(results.size, num)]
    ).astype(np.int64)
    written = np.arange(tensor.size) < given.size + write.size
    order = np.lexsort((place, tensor))
    return tensor[order], place[order], written[order]


def _takers(
    graph: Graph, runs: Ints, tensor: Ints, place: Ints, written: Bools
) -> tuple[Ints, Ints]:
    """The events of outputs that may take over storage, and those of the reads of that storage."""
    takes = np.where(graph.arrays.tensor_optional, -1, graph.arrays.tensor_takes_over)
    taker = np.flatnonzero(written & (place >= 0) & (takes[tensor] >= 0))
    wide = runs.size + 2
    at = np.flatnonzero(~written)
    where = np.searchsorted(
        tensor[at] * wide + place[at], takes[tensor[taker]] * wide + place[taker]
    )
    return taker, at[where]


def _spread(start: Ints, items: Ints, runs: Ints) -> tuple[Ints, Ints]:
    """The place of each run, and each of its items."""
    counts = start[runs + 1] - start[runs]
    place = np.repeat(np.arange(runs.size), counts)
    first = np.repeat(start[runs] - np.cumsum(counts) + counts, counts)
    return place, items[first + np.arange(place.size)]
