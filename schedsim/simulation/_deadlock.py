"""Why a schedule got stuck: which runs wait for which, and which tensors hold the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DeadlockError
from ..units import format_bytes_short

if TYPE_CHECKING:
    from ..dataflow.graph import Graph
    from .course import Course, IssueOrder, Started

# How many tensors of a full pool, and how many streams, the message names; `waits` has them all.
_MOST_HOLDERS = 3
_MOST_WAITS = 4


def explain_deadlock(
    graph: Graph, course: Course, stuck_at: Started, num_ended: int
) -> DeadlockError:
    """The error for a simulation in which nothing can start any more.

    Parameters
    ----------
    stuck_at
        The state when the simulation got stuck: the runs that have yet to use each instance, and
        the bytes in each pool.
    """
    arrays, order, runs = graph.arrays, course.order, stuck_at.runs
    ended = np.zeros(runs.size, dtype=bool)
    happened = course.events[: 2 * num_ended]
    ended[happened[happened % 2 == 1] // 2] = True
    waits: list[str] = []
    of_memory: list[str] = []
    stuck: tuple[int, str] | None = None
    for q, stream in enumerate(arrays.stream_names):
        line = order.line[order.line_start[q] : order.line_start[q + 1]]
        left = line[~ended[line]]
        if not left.size:
            continue
        k = int(left[0])
        other, why = _awaited_run(graph, stuck_at, course, ended, k)
        if other is None:
            why, hint = _memory_wait(graph, stuck_at, course, ended, k)
            if stuck is None or k < stuck[0]:
                stuck = k, hint
        waits.append(f"{_named(graph, runs, k)} on {stream} waits for {why}")
        of_memory += waits[-1:] if other is None else []
    # Every wait for another run ends at a run that waits for memory.
    assert stuck is not None
    said = [*of_memory, *(wait for wait in waits if wait not in of_memory)]
    more = f"; {len(said) - _MOST_WAITS} more wait" if len(said) > _MOST_WAITS else ""
    return DeadlockError(
        f"after {num_ended} of {runs.size} runs no other can start: "
        f"{'; '.join(said[:_MOST_WAITS])}{more}",
        run_index=stuck[0],
        op_name=graph.op_names[runs[stuck[0]]],
        waits=tuple(waits),
        hint=stuck[1],
    )


def _named(graph: Graph, runs: NDArray[np.int32], k: int) -> str:
    return f"schedule[{k}] {graph.op_names[runs[k]]}"


def _awaited_run(
    graph: Graph, stuck_at: Started, course: Course, ended: NDArray[np.bool_], k: int
) -> tuple[int | None, str]:
    """The run that run `k` waits for, in words too; ``None`` where `k` waits for memory."""
    order, runs = course.order, stuck_at.runs
    for i in order.input_instance[order.input_start[k] : order.input_start[k + 1]].tolist():
        other = int(order.writer[i])
        if other >= 0 and not ended[other]:
            name = graph.arrays.tensor_names[stuck_at.tensor[i]]
            return other, f"{name} of {_named(graph, runs, other)}"
    for other in order.issued_run[order.issued_start[k] : order.issued_start[k + 1]].tolist():
        if other >= 0 and not ended[other]:
            return other, f"{_named(graph, runs, other)}, issued before it"
    return None, ""


def _memory_wait(
    graph: Graph, stuck_at: Started, course: Course, ended: NDArray[np.bool_], k: int
) -> tuple[str, str]:
    """Which memory run `k` lacks and what holds that memory, and what to do about it."""
    arrays, order = graph.arrays, course.order
    tensor, last, source = stuck_at.tensor, stuck_at.last, stuck_at.source
    uses, used, limits = stuck_at.uses, stuck_at.used, stuck_at.limits
    op = int(stuck_at.runs[k])
    needs = np.zeros(used.size, dtype=np.int64)
    saves = False
    base = int(arrays.write_start[op] - order.made[k])
    for i in range(int(order.made[k]), int(order.made[k + 1])):
        if last[i] < 0:
            continue
        saves = saves or bool(arrays.write_optional[base + i])
        size, s = int(arrays.tensor_bytes[tensor[i]]), int(source[i])
        if s >= 0 and uses[s] == 1:
            size -= min(size, int(arrays.tensor_bytes[tensor[s]]))
        needs[arrays.tensor_pool[tensor[i]]] += size
    table = arrays.op_saving_workspace_bytes if saves else arrays.op_workspace_bytes
    needs[arrays.op_pool[op]] += table[op]
    pool = int(np.flatnonzero((limits >= 0) & (used + needs > limits))[0])
    needed, free = int(needs[pool]), int(limits[pool] - used[pool])
    name = arrays.pool_names[pool]
    holders = _holders(graph, stuck_at, course, ended, pool)
    held = f", held by {', '.join(holders)}" if holders else ""
    fixed = int(arrays.pool_static_bytes[pool])
    held += f", {format_bytes_short(fixed)} of static bytes" if fixed else ""
    why = f"{format_bytes_short(needed)} of pool {name!r}, "
    why += f"where {format_bytes_short(free)} are free{held}"
    missing = format_bytes_short(needed - free)
    hint = f"{missing} more in {name!r} would let it start"
    if holders:
        hint += ", or a schedule that brings fewer tensors there so early"
    return why, hint


def _holders(
    graph: Graph, stuck_at: Started, course: Course, ended: NDArray[np.bool_], pool: int
) -> list[str]:
    """The largest tensors alive in `pool`, with the next run that uses each."""
    arrays, order = graph.arrays, course.order
    runs, tensor, last = stuck_at.runs, stuck_at.tensor, stuck_at.last
    written = (order.writer < 0) | ended[order.writer]
    alive = written & (last >= 0) & (course.freed == 2 * runs.size)
    alive &= arrays.tensor_pool[tensor] == pool
    found = np.flatnonzero(alive)
    sizes = arrays.tensor_bytes[tensor[found]]
    by_size = np.argsort(-sizes, kind="stable")
    lines = []
    for i in found[by_size][:_MOST_HOLDERS].tolist():
        reader = _next_reader(order, ended, i)
        size = format_bytes_short(int(arrays.tensor_bytes[tensor[i]]))
        until = f"until {_named(graph, runs, reader)}" if reader is not None else "to the end"
        lines.append(f"{arrays.tensor_names[tensor[i]]} ({size}, {until})")
    if found.size > _MOST_HOLDERS:
        lines.append(f"{found.size - _MOST_HOLDERS} more")
    return lines


def _next_reader(order: IssueOrder, ended: NDArray[np.bool_], instance: int) -> int | None:
    places = np.flatnonzero(order.input_instance == instance)
    readers = np.searchsorted(order.input_start, places, side="right") - 1
    left = readers[~ended[readers]]
    return int(left.max()) if left.size else None
