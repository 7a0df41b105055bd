"""A schedule of little memory that depends on the graph and the order alone.

A search that finds nothing within a budget names the least budget that it knows of, and must find a
schedule there when it is asked again: in another process, at another speed, with other op times. So
this descent depends on neither time nor budget, only on a fixed number of evictions and moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._anneal import Found, Rules, walk
from ._forward_part import forward_part
from ._memory_profile import make_profile, store_runs
from ._packed_graph import PackedGraph
from ._profile_record import LARGEST, NUM_EDITS, Profile
from ._walker import GraphWalker, Kind
from .chen_articulation import segment_runs

# Evictions and moves come in chunks, after each of which the schedule of lowest peak is kept.
_EVICTIONS, _MOVES = 250, 50
_EVICTION_CHUNKS, _MOVE_CHUNKS = 4, 20
# Seconds per byte over the limit: at first, at least and at most; the peak has no temperature.
_PRICE = (2.0, 0.02, 1000.0, 0.0)

# Small moves that go on from there aim a little below the lowest peak, again and again. They take
# so much work for each op, and no more than for 1,000 ops.
_STEPPING, _STEP_CHUNKS = Kind(0.0, 0.5, steps_down=True), 40
_STEPPED_PER_OP, _MOST_STEPPED = 1e-3, 1.0

# About the work of evictions and repaired moves for each op of a line.
_LEAN_PER_OP = 1e-4


def _never() -> bool:
    return False


def lean_schedule(
    graph: Graph,
    packed: PackedGraph,
    lines: Iterable[NDArray[Any]],
    least_bytes: int,
    free: bool,
    *,
    is_over: Callable[[], bool] = _never,
) -> Simulation:
    """The schedule of the least peak found from `lines` and from Chen's segments, simulated.

    It is cached with the graph, because it is a function of the graph.

    Parameters
    ----------
    lines
        Legal sequences of runs, in the order asked for.
    least_bytes
        A bound on the peak of every schedule, in bytes.
    free
        Whether the order of first runs may change.
    is_over
        Whether to stop, asked between some hundred evictions or moves. A descent that is stopped
        counts for nothing: the result is then that of the descents before it, or the first line
        as it stands, and is not cached.

    Notes
    -----
    About 1,000 evictions and 1,000 moves a line; 10,000 ops take two seconds.
    """
    kept: dict[bool, Simulation] = graph.__dict__.setdefault("_lean", {})
    if free in kept:
        return kept[free]
    packed = _evenly_timed(packed)
    limit = least_bytes - graph.static_bytes - 1  # never reached
    found: list[Simulation] = []
    done = True
    for line in _each(lines, graph):
        found.append(simulate(graph, Schedule(graph.op_names, line)))
        if is_over():
            done = False
            break
        profile = make_profile(packed, line, free=free)
        runs = _lowered(packed, profile, limit, graph.num_ops, is_over)
        if runs is None:
            done = False
            break
        found.append(simulate(graph, Schedule(graph.op_names, runs)))
    lean = min(found, key=lambda simulation: simulation.peak_bytes)
    if done:
        kept[free] = lean
    return lean


def leanest_schedule(
    graph: Graph,
    packed: PackedGraph,
    lines: Iterable[NDArray[Any]],
    least_bytes: int,
    free: bool,
    *,
    is_over: Callable[[], bool] = _never,
) -> Simulation:
    """The schedule of the least peak that small moves from `lean_schedule` come to, simulated.

    This is the least budget that a search names. As a start for annealing within a larger budget
    `lean_schedule` is better, because it repeats less. The parameters are those of `lean_schedule`,
    and this schedule is cached with the graph, too.
    """
    kept: dict[bool, Simulation] = graph.__dict__.setdefault("_leanest", {})
    if free in kept:
        return kept[free]
    lean = lean_schedule(graph, packed, lines, least_bytes, free, is_over=is_over)
    line, limit = lean.schedule.bind(graph), least_bytes - graph.static_bytes - 1  # never reached
    walker = GraphWalker.of(
        graph,
        _evenly_timed(packed),
        line,
        number=0,
        seed=0,
        rules=(limit, free),
        kind=_STEPPING,
        step_s=graph.num_ops,
    )
    walker.note_least()
    walker.begin(0)
    for chunk in range(_STEP_CHUNKS):
        if is_over():
            return lean
        walker.anneal(chunk / _STEP_CHUNKS, _stepped_work(graph) / _STEP_CHUNKS, 2**62)
    found = simulate(graph, Schedule(graph.op_names, walker.least_runs))
    kept[free] = min(lean, found, key=lambda simulation: simulation.peak_bytes)
    return kept[free]


def lean_work(graph: Graph) -> float:
    """About the work of `lean_schedule`, in the units of an effort."""
    return _LEAN_PER_OP * graph.num_ops


def leanest_work(graph: Graph) -> float:
    """About the work of `leanest_schedule`, in the units of an effort."""
    return _LEAN_PER_OP * graph.num_ops + _stepped_work(graph)


def _stepped_work(graph: Graph) -> float:
    return min(_MOST_STEPPED, _STEPPED_PER_OP * graph.num_ops)


def _evenly_timed(packed: PackedGraph) -> PackedGraph:
    """With the same time for all ops: measured times differ from one capture to the next."""
    return replace(packed, time_s=np.append(np.ones(packed.time_s.size - 2), [0.0, 0.0]))


def _each(lines: Iterable[NDArray[Any]], graph: Graph) -> Iterator[NDArray[Any]]:
    yield from lines
    yield from _segments(graph)


def _segments(graph: Graph) -> list[NDArray[np.int32]]:
    """The schedule of the least peak among Chen's segments: low on long graphs, beside others."""
    best: tuple[int, NDArray[np.int32]] | None = None
    for _, runs in segment_runs(forward_part(graph.arrays)):
        peak = simulate(graph, Schedule(graph.op_names, runs)).peak_bytes
        if best is None or peak < best[0]:
            best = peak, runs
    return [best[1]] if best is not None else []


def _lowered(
    packed: PackedGraph,
    profile: Profile,
    limit: int,
    num_ops: int,
    is_over: Callable[[], bool],
) -> NDArray[np.int64] | None:
    """The runs of the lowest peak on the way down from `profile`; ``None`` where it is stopped."""
    lowest, runs = 2**62, np.empty(profile.run.shape[0], np.int64)
    size = 0

    def note() -> None:
        nonlocal lowest, size
        peak = int(profile.tree[1, LARGEST])
        if peak < lowest:
            lowest, size = peak, store_runs(packed, profile, runs)

    note()
    found = Found(np.zeros_like(runs), np.array([np.inf, 0.0]))
    rules = Rules(limit, 0.3, np.zeros(4))
    for _ in range(_EVICTION_CHUNKS):
        if is_over():
            return None
        walk(packed, profile, found, rules, 0.0, _EVICTIONS, 0, True)
        note()
    profile.counts[NUM_EDITS] = 0
    rules.price[:] = np.array(_PRICE) * (num_ops / max(1, lowest))
    for _ in range(_MOVE_CHUNKS):
        if is_over():
            return None
        walk(packed, profile, found, rules, 0.5, _MOVES, 2**62, False)
        note()
    return runs[:size].copy()
