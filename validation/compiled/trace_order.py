"""First runs back in the order of the trace, where a schedule moves them for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from schedsim import Graph, Schedule, simulate
from schedsim.errors import InvalidScheduleError

_MOST_MOVES = 2048
"""Most ops that are tried: each of them is a simulation of the schedule."""


def nearer_the_trace(graph: Graph, runs: Sequence[int]) -> list[int]:
    """`runs` with first runs behind those of the ops before them, where the peak of `graph` stays.

    A search over free orders moves many ops that could as well stay. What is traced one behind the
    other often reads the same tensors, which are in the cache then, and may become one kernel. Each
    op runs as often as before. O(ops * runs).
    """
    found, tried = list(runs), 0
    before = simulate(graph, Schedule(graph.op_names, found)).peak_bytes
    for op in range(1, graph.num_ops):
        at = found.index(op)
        if found[at - 1 : at] == [op - 1] or tried == _MOST_MOVES:
            continue
        tried += 1
        other = [*found[:at], *found[at + 1 :]]
        other.insert(other.index(op - 1) + 1, op)
        try:
            if simulate(graph, Schedule(graph.op_names, other)).peak_bytes <= before:
                found = other
        except InvalidScheduleError:  # it reads, or is read, on the way
            continue
    return found
