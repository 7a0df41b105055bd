"""Waiting in a step: its critical path, and why streams are idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .course import CAUSES

if TYPE_CHECKING:
    from .result import Simulation


@dataclass(frozen=True, slots=True)
class PathStep:
    """A run on the critical path.

    Attributes
    ----------
    run : int
    op_name, stream : str
    start_s, end_s : float
    cause : str
        One of `schedsim.simulation.course.CAUSES`: what the run waited for, and what the step
        before it on the path provided.
    """

    run: int
    op_name: str
    stream: str
    start_s: float
    end_s: float
    cause: str


def critical_path(simulation: Simulation) -> list[PathStep]:
    """The chain of runs, each of which lets the next one start, up to the run that ends last.

    A copy that waited in issue order (cause ``issue order``) started with the start of the step
    before it; every other step started with the end of the step before it.

    Notes
    -----
    O(length of the path). If several runs end last, the path ends with the first of them in the
    schedule; if several runs let another start, the path takes one of them.

    Examples
    --------
    >>> import schedsim
    >>> graph = schedsim.Graph("g", (schedsim.Op("f", time_s=1), schedsim.Op("g", time_s=1)))
    >>> run = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
    >>> [(step.op_name, step.cause) for step in critical_path(run)]
    [('f', 'nothing'), ('g', 'stream')]
    """
    causes, blockers = _reasons(simulation)
    names, streams = simulation.run_names, simulation.run_streams
    path = []
    run = int(np.argmax(simulation.end_s)) if simulation.num_runs else -1
    while run >= 0:
        path.append(
            PathStep(
                run=run,
                op_name=names[run],
                stream=simulation.stream_names[streams[run]],
                start_s=float(simulation.start_s[run]),
                end_s=float(simulation.end_s[run]),
                cause=CAUSES[causes[run]],
            )
        )
        run = int(blockers[run])
    return path[::-1]


def critical_s(simulation: Simulation) -> dict[str, float]:
    """Seconds of the critical path on each stream; their sum is the makespan.

    A run counts until the next run on the path starts. Streams without a part in the path are left
    out.

    Examples
    --------
    >>> import schedsim
    >>> ops = (schedsim.Op("f", time_s=1, writes={"x": 1}, stream="compute:0"),
    ...        schedsim.Op("g", time_s=2, reads=("x",), stream="compute:1"))
    >>> graph = schedsim.Graph("g", ops)
    >>> critical_s(schedsim.simulate(graph, schedsim.Schedule.store_all(graph)))
    {'compute:0': 1.0, 'compute:1': 2.0}
    """
    path = critical_path(simulation)
    spent: dict[str, float] = {}
    for step, until in zip(
        path, [*(s.start_s for s in path[1:]), simulation.makespan_s], strict=True
    ):
        if until > step.start_s:
            spent[step.stream] = spent.get(step.stream, 0.0) + until - step.start_s
    return spent


def idle_s(simulation: Simulation) -> dict[str, dict[str, float]]:
    """Seconds that each stream is idle, by what its next run waits for.

    Stream -> cause -> seconds; ``"end"`` is the time between its last run and the end of the step.
    Causes without time are left out.

    Examples
    --------
    >>> import schedsim
    >>> ops = (schedsim.Op("f", time_s=1, writes={"x": 1}, stream="compute:0"),
    ...        schedsim.Op("g", time_s=2, reads=("x",), stream="compute:1"))
    >>> graph = schedsim.Graph("g", ops)
    >>> idle_s(schedsim.simulate(graph, schedsim.Schedule.store_all(graph)))
    {'compute:0': {'end': 2.0}, 'compute:1': {'input': 1.0}}
    """
    causes, _ = _reasons(simulation)
    streams = simulation.run_streams
    table: dict[str, dict[str, float]] = {}
    for number, stream in enumerate(simulation.stream_names):
        runs = np.flatnonzero(streams == number)
        ends = np.concatenate([[0.0], simulation.end_s[runs]])
        waits = simulation.start_s[runs] - ends[:-1]
        spent = np.bincount(causes[runs], waits, len(CAUSES))
        row = {name: float(time) for name, time in zip(CAUSES, spent, strict=True) if time > 0}
        after = simulation.makespan_s - float(ends[-1])
        if after > 0:
            row["end"] = after
        table[stream] = row
    return table


def _reasons(simulation: Simulation) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cause and blocker of each run; on one stream each run waits for the run before it."""
    course = simulation.course
    if course is not None:
        return course.cause.astype(np.int64), course.blocker.astype(np.int64)
    causes = np.full(simulation.num_runs, CAUSES.index("stream"), dtype=np.int64)
    causes[:1] = CAUSES.index("nothing")
    return causes, np.arange(simulation.num_runs) - 1
