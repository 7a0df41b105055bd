"""A schedule with fewer repeated runs, while what is reserved still fits.

Reserved bytes jump from schedule to schedule, so that the fastest plan found may leave a part of
its budget unused. Each run that repeats an op is a chance to use more of it: without that run, what
it makes stays from the run before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ..dataflow.graph import Graph

_FIRST_SHARE = 4
"""The first try leaves out a quarter of the repeated runs."""


class _Fitting(Protocol):
    """A schedule that fits."""

    @property
    def makespan_s(self) -> float:
        """Seconds of a step."""


Found = TypeVar("Found", bound=_Fitting)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeated run, by its number among all runs of its op, and what leaving it out saves."""

    op: str
    number: int
    saved_s: float
    held_bytes: int


def fewer_repeats(
    graph: Graph,
    names: Sequence[str],
    found: Found,
    fitting: Callable[[Sequence[str]], Found | None],
    most_tries: int,
) -> Found:
    """`found`, or a faster result of `fitting` for a schedule with fewer repeated runs.

    Runs that save most time for each byte that then stays are left out first, many at once while
    that fits, fewer where it does not. Runs that were repeated for the sake of these alone go, too.

    Parameters
    ----------
    names
        The op of each run of the schedule that `found` is of.
    fitting
        Gives the result for a schedule, or ``None`` where it is not legal or does not fit.
    most_tries
        How often `fitting` is called.

    Notes
    -----
    O(n) for each repeated run and for each try, beside `fitting`, for n runs.
    """
    rows, position = repeats(graph, names), 0
    size = max(1, len(rows) // _FIRST_SHARE)
    gone: set[tuple[str, int]] = set()
    for _ in range(most_tries):
        if position >= len(rows):
            break
        chunk = rows[position : position + size]
        wanted = gone | {(row.op, row.number) for row in chunk}
        result = fitting(without_runs(graph, names, wanted))
        if result is not None and result.makespan_s < found.makespan_s:
            found, gone = result, wanted
        elif size > 1:
            size //= 2
            continue
        position += size
        size = max(1, min(2 * size, len(rows) - position))
    return found


def one_repeat_fewer(graph: Graph, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`names` without one repeated run, for each of them; runs repeated for it alone go, too."""
    for row in repeats(graph, names):
        yield without_runs(graph, names, {(row.op, row.number)})


def without_runs(graph: Graph, names: Sequence[str], gone: set[tuple[str, int]]) -> tuple[str, ...]:
    """`names` without the runs in `gone`, and without repeats that no run needs any longer.

    `gone` has pairs of an op and the number of a run of it, from 0. The first run of each op stays.
    O(n) for n runs.
    """
    ops = {op.name: op for op in graph.ops}
    numbers = _numbers(names)
    wanted: set[str] = set(graph.results)
    kept: list[str] = []
    for name, number in zip(reversed(names), reversed(numbers), strict=True):
        op = ops[name]
        if number and ((name, number) in gone or wanted.isdisjoint(op.writes)):
            continue
        kept.append(name)
        wanted.difference_update(op.writes)
        wanted.update(op.reads)
    return tuple(reversed(kept))


def _numbers(names: Sequence[str]) -> list[int]:
    counts: dict[str, int] = {}
    found = []
    for name in names:
        found.append(counts.get(name, 0))
        counts[name] = found[-1] + 1
    return found


def repeats(graph: Graph, names: Sequence[str]) -> list[Repeat]:
    """The repeated runs, those first that save most time for a byte."""
    ops = {op.name: op for op in graph.ops}
    found = []
    for name, number in zip(names, _numbers(names), strict=True):
        op = ops[name]
        if number and op.time_s > 0:
            found.append(Repeat(name, number, op.time_s, max(1, sum(op.writes.values()))))
    found.sort(key=lambda row: (-row.saved_s / row.held_bytes, row.op, row.number))
    return found
