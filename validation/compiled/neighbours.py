"""Runs beside others that they can be one with: a repeat, and half of a convolution's backward.

A schedule repeats an op right before its reader. Of an activation whose gradient needs the same
input, the reader is the product that makes a weight's gradient, and the group that makes the
activation's gradient runs behind that. Inductor's own partition computes both in one loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedsim import Graph, Schedule, simulate

from ..capture.program import Call, Program
from ..capture.to_graph import op_calls
from .gradient_kernels import in_one_kernel
from .group import FusedGroup

_FARTHEST = 12
"""Most runs from a repeat to the group that it is moved to."""
_FEW_BETWEEN = 2
"""Most runs between the two halves of a backward that are put together."""
_MOST_MOVES = 256
"""Most repeats that are tried: each of them is a simulation of the schedule."""


def beside_their_like(program: Program, graph: Graph, runs: Sequence[int]) -> list[int]:
    """`runs` with repeats moved, where the peak of `graph` stays; each op runs as often as before.

    A repeat moves behind the runs that do not need it, up to the next group that reads the largest
    of what it reads, and what needs it moves behind that group. O(repeats * runs).
    """
    ops, found, tried = op_calls(program), list(runs), 0
    before = _peak_bytes(graph, found)
    seen: set[int] = set()
    k = 0
    while k < len(found) and tried < _MOST_MOVES:
        run = found[k]
        if run in seen:
            other = _moved(program, ops, found, k)
            if other is not None:
                tried += 1
                if _peak_bytes(graph, other) <= before:
                    found = other
        seen.add(found[k])
        k += 1
    return found


def halves_together(program: Program, graph: Graph, runs: Sequence[int]) -> list[int]:
    """`runs` with both kernels of a convolution's backward together, where the peak stays.

    A group that copies the gradient of the weight into the weight's layout may stand between them.
    O(runs) for each convolution.
    """
    ops, found = op_calls(program), list(runs)
    before = _peak_bytes(graph, found)
    for k in range(len(found)):
        other = _together(program, ops, found, k)
        if other is not None and _peak_bytes(graph, other) <= before:
            found = other
    return found


def _together(
    program: Program, ops: Sequence[int], runs: Sequence[int], begin: int
) -> list[int] | None:
    """`runs` with the other half of that at `begin` right behind it, if it comes soon behind."""
    calls = [program.calls[ops[run]] for run in runs[begin : begin + _FEW_BETWEEN + 2]]
    for k, call in enumerate(calls[2:], 2):
        if in_one_kernel((calls[0], call)) is None:
            continue
        made, read = _writes(program, call), set(program.base_reads(call))
        for other in calls[1:k]:
            if made & {*program.base_reads(other), *_writes(program, other)}:
                return None
            if read & _writes(program, other):
                return None
        at = begin + k
        return [*runs[: begin + 1], runs[at], *runs[begin + 1 : at], *runs[at + 1 :]]
    return None


def _peak_bytes(graph: Graph, runs: Sequence[int]) -> int:
    return simulate(graph, Schedule(graph.op_names, runs)).peak_bytes


def _moved(
    program: Program, ops: Sequence[int], runs: Sequence[int], begin: int
) -> list[int] | None:
    """`runs` with that at `begin` right before a group that reads what it reads.

    ``None`` if there is none, or the repeat stands there, or must not move.
    """
    calls = [program.calls[ops[run]] for run in runs[begin : begin + _FARTHEST + 1]]
    first = calls[0]
    if not isinstance(first.target, FusedGroup) or first.tokens or first.once:
        return None
    wanted = max(
        program.base_reads(first), key=lambda s: program.storages[s].size_bytes, default=None
    )
    made = _writes(program, first)
    waiting: list[int] = [0]  # the repeat, and what needs it
    others: list[int] = []
    for k, call in enumerate(calls[1:], 1):
        if call.tokens or call.once or ops[runs[begin + k]] == program.seed:
            return None
        reads, writes = set(program.base_reads(call)), _writes(program, call)
        if writes & made:
            return None  # made once more: its readers would get the other instance
        needs = bool(reads & made)
        if not needs and isinstance(call.target, FusedGroup) and wanted in reads:
            if k == 1:
                return None  # they are neighbours
            order = [*others, 0, k, *waiting[1:], *range(k + 1, len(calls))]
            return [*runs[:begin], *(runs[begin + i] for i in order), *runs[begin + len(calls) :]]
        if needs:
            waiting.append(k)
            made |= writes
        else:
            others.append(k)
    return None


def _writes(program: Program, call: Call) -> set[int]:
    return {program.values[v].storage for v in call.outputs if v >= 0}
