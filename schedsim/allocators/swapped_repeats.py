"""A schedule with other repeated runs, which take less time, where what is reserved still fits.

Leaving out runs only ever holds more. A schedule can also leave out one or two and repeat another,
cheaper one in their place, so that something else stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from .fewer_repeats import Found, Repeat, repeats, without_runs

if TYPE_CHECKING:
    from ..dataflow.graph import Graph

_MOST_SWAPS = 20_000
"""Where there are more pairs of runs to leave out and an op to repeat, none is tried."""

_LEAST_GAIN = 1e-6
"""As a share of the step, what a swap has to save."""


def swapped_repeats(
    graph: Graph,
    names: Sequence[str],
    found: Found,
    fitting: Callable[[Sequence[str]], Found | None],
    most_tries: int,
) -> Found:
    """`found`, or a faster result of `fitting` after one or several swaps.

    A swap leaves out one or two repeated runs and repeats at most one op, right before a run that
    reads it. Swaps that save most time are tried first; after one that fits, those of the new
    schedule. The parameters are those of `fewer_repeats`.

    Notes
    -----
    O(n) for each swap and for each try, beside `fitting`, for n runs.
    """
    left, improved = most_tries, True
    while improved:
        improved = False
        for other in _swapped(graph, names, _LEAST_GAIN * found.makespan_s):
            if not left:
                break
            left -= 1
            result = fitting(other)
            if result is not None and result.makespan_s < found.makespan_s:
                found, names, improved = result, other, True
                break
    return found


def _swapped(graph: Graph, names: Sequence[str], least_gain_s: float) -> Iterator[tuple[str, ...]]:
    """The schedules that one swap makes of `names`, those first that save most time."""
    rows = repeats(graph, names)
    groups: list[tuple[Repeat, ...]] = [(row,) for row in rows]
    num_others = 1 + sum(op.phase == "forward" for op in graph.ops)
    if (len(rows) * (len(rows) + 1) // 2) * num_others <= _MOST_SWAPS:
        groups += combinations(rows, 2)
    elif len(rows) * num_others > _MOST_SWAPS:
        return
    others = [("", 0.0)] + [(op.name, op.time_s) for op in graph.ops if op.phase == "forward"]
    swaps = []
    for group in groups:
        saved_s = sum(row.saved_s for row in group)
        for name, time_s in others:
            if saved_s - time_s > least_gain_s and all(row.op != name for row in group):
                swaps.append((time_s - saved_s, [(row.op, row.number) for row in group], name))
    for _, gone, name in sorted(swaps):
        base = without_runs(graph, names, set(gone))
        if not name:
            yield base
            continue
        for at in _before_readers(graph, base, name):
            yield (*base[:at], name, *base[at:])


def _before_readers(graph: Graph, names: Sequence[str], op_name: str) -> Iterator[int]:
    """Where a repeat of the op may stand: right before each run that reads what it writes."""
    ops = {op.name: op for op in graph.ops}
    written = set(ops[op_name].writes)
    there = False
    for at, name in enumerate(names):
        if there and not written.isdisjoint(ops[name].reads):
            yield at
        there = there or name == op_name
