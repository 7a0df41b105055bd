"""Single changes to a schedule: keep what it recomputes, recompute what it keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .graph import Graph
from .schedule import Schedule

MAX_INSERTED_RUNS = 64
"""Recomputing one tensor that needs more runs than this is not one change any more."""


def keep_instead(graph: Graph, schedule: Schedule, runs: Iterable[int]) -> Schedule:
    """`schedule` without the repeats at `runs`, nor those that only served them.

    Whoever read what they wrote reads the instance before, which so lives on.

    Parameters
    ----------
    runs
        Indices of runs that are not the first of their op.

    Notes
    -----
    O(runs + reads + writes).

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                           output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> schedule = Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])
    >>> keep_instead(chain.graph, schedule, [4])
    Schedule(F0 F1 loss B1 B0)
    """
    bound = schedule.bind(graph)
    dropped = set(runs)
    first = _first_runs(bound)
    if any(first[k] for k in dropped):
        raise ValueError("the first run of an op cannot be dropped")
    reads, writes = _tables(graph)
    useful = _wanted(bound, first, reads, writes)
    # What nobody wanted before stays: it is not this change that makes it useless.
    stays = first | ~useful
    stays[list(dropped)] = False
    keep = _wanted(bound, stays, reads, writes, dropped)
    return Schedule(graph.op_names, bound[keep])


def recompute_instead(
    graph: Graph, schedule: Schedule, tensors: Sequence[str], at_run: int
) -> Schedule | None:
    """`schedule` with `tensors` let go across `at_run` and made again for their next reader.

    What their producers read, and is not alive there, is made again too.

    Parameters
    ----------
    tensors
        Alive during run `at_run`, which neither reads nor writes them.

    Returns
    -------
    Schedule or None
        ``None`` where an op among those to repeat may not run twice, where nobody reads them
        later, or where more than `MAX_INSERTED_RUNS` runs would be needed.

    Notes
    -----
    O(runs + reads + writes).

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                           output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> recompute_instead(chain.graph, Schedule.store_all(chain), ["r1"], 3)
    Schedule(F0 F1 loss B1 F0 B0)
    """
    bound = schedule.bind(graph)
    reads, writes = _tables(graph)
    number = {name: i for i, name in enumerate(graph.arrays.tensor_names)}
    missing = {number[name] for name in tensors}
    at = _next_read(bound, reads, missing, at_run + 1)
    if at is None:
        return None
    alive = _alive_at(bound, reads, writes, at, graph) - missing
    producer = graph.arrays.tensor_producer
    once = graph.arrays.op_once
    needed: set[int] = set()
    stack = [int(producer[t]) for t in missing]
    while stack:
        op = stack.pop()
        if op < 0 or op in needed:
            continue
        if once[op] or len(needed) >= MAX_INSERTED_RUNS:
            return None
        needed.add(op)
        stack.extend(int(producer[t]) for t in reads[op] if t not in alive and producer[t] >= 0)
    # Ops stand in the graph in an order in which they can run.
    inserted = np.array(sorted(needed), dtype=bound.dtype)
    return Schedule(graph.op_names, np.concatenate([bound[:at], inserted, bound[at:]]))


def _tables(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Tensors read and written, a list per op."""
    arrays = graph.arrays
    tables = []
    for start, tensor in (
        (arrays.read_start, arrays.read_tensor),
        (arrays.write_start, arrays.write_tensor),
    ):
        flat, ends = tensor.tolist(), start.tolist()
        tables.append([flat[ends[i] : ends[i + 1]] for i in range(graph.num_ops)])
    return tables[0], tables[1]


def _first_runs(bound: NDArray[np.int32]) -> NDArray[np.bool_]:
    first = np.zeros(bound.size, dtype=bool)
    first[np.unique(bound, return_index=True)[1]] = True
    return first


def _wanted(
    bound: NDArray[np.int32],
    stays: NDArray[np.bool_],
    reads: list[list[int]],
    writes: list[list[int]],
    dropped: Collection[int] = (),
) -> NDArray[np.bool_]:
    """Runs that stay, or write what a run that is wanted reads."""
    keep = stays.copy()
    wanted: set[int] = set()
    for k in range(bound.size - 1, -1, -1):
        op = int(bound[k])
        keep[k] = keep[k] or (k not in dropped and not wanted.isdisjoint(writes[op]))
        if keep[k]:
            wanted.difference_update(writes[op])
            wanted.update(reads[op])
    return keep


def _next_read(
    bound: NDArray[np.int32], reads: list[list[int]], tensors: set[int], start: int
) -> int | None:
    for k in range(start, bound.size):
        if not tensors.isdisjoint(reads[int(bound[k])]):
            return k
    return None


def _alive_at(
    bound: NDArray[np.int32],
    reads: list[list[int]],
    writes: list[list[int]],
    at: int,
    graph: Graph,
) -> set[int]:
    """Tensors that a run inserted before run `at` can read: read later, inputs, or results."""
    arrays = graph.arrays
    last_written: dict[int, int] = {}
    for k in range(at):
        last_written.update(dict.fromkeys(writes[int(bound[k])], k))
    alive = {t for t in range(arrays.tensor_producer.size) if arrays.tensor_producer[t] < 0}
    overwritten: set[int] = set()
    for k in range(at, bound.size):
        op = int(bound[k])
        alive.update(t for t in reads[op] if t in last_written and t not in overwritten)
        overwritten.update(writes[op])
    alive.update(t for t in last_written if arrays.tensor_result[t] and t not in overwritten)
    return alive
