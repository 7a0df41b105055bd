"""Fast schedules of the field's planners, as starting points of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._forward_part import forward_part
from .chen_articulation import segment_runs
from .dtr import Heuristic, dtr_work
from .kusumoto import family_masks, lower_set_runs
from .saved_bytes import selections

MANY_OPS = 3000
"""Above this, only the heuristics of DTR that walk no evicted tensors are used, in few settings."""

_FEW_SETTINGS, _HALVINGS = 12, 4

MAX_LOWER_SETS = 800
"""Kusumoto's dynamic program is quadratic in lower sets: beyond this many it gives no seeds."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A legal sequence of op runs, with its peak and time by replay."""

    name: str
    runs: NDArray[np.int32]
    peak_bytes: int
    makespan_s: float


def seeds(
    graph: Graph,
    budget_bytes: int,
    methods: Iterable[Callable[[Graph, int], list[Seed]]] | None = None,
) -> list[Seed]:
    """The seeds of all `methods`: first those that fit, fastest first, then by ascending peak.

    Store-all is always among them. First runs keep the graph's order.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("g", (Op("f", writes={"x": 8}), Op("b", "backward", reads=("x",))))
    >>> [(seed.name, seed.runs.tolist()) for seed in seeds(graph, 8)][0]
    ('store_all', [0, 1])
    """
    if methods is None:
        methods = (dtr_seeds, saved_bytes_seeds, chen_seeds, kusumoto_seeds)
    found = [_measured(graph, "store_all", np.arange(graph.num_ops, dtype=np.int32))]
    for method in methods:
        found += method(graph, budget_bytes)
    return sorted(found, key=lambda seed: _rank(seed, budget_bytes))


def dtr_seeds(
    graph: Graph,
    budget_bytes: int,
    heuristics: tuple[Heuristic, ...] | None = None,
    *,
    effort: Effort | None = None,
) -> list[Seed]:
    """Schedules of DTR, one per heuristic that does not fail: the fastest that fits, or the least.

    DTR counts a tensor as long as it is in memory, the replay counts it until its last read: with
    a little more room than the budget DTR evicts less, and its schedule may still fit. With an
    `effort`, no replay but the first is begun once the effort is spent.
    """
    few: tuple[Heuristic, ...] = ("dtr_eq", "local", "size")
    many: tuple[Heuristic, ...] = ("dtr", "msps", "neighbourhood", *few)
    names = heuristics or (many if graph.num_ops <= MANY_OPS else few)
    factors = (1.0, 1.02, 1.05) if graph.num_ops <= MANY_OPS else (1.0,)
    room_bytes = budget_bytes - graph.static_bytes
    begun = False

    def tried(heuristic: Heuristic) -> Iterator[Seed]:
        nonlocal begun
        for factor in factors:
            if begun and effort is not None and effort.is_over():
                return
            begun = True
            runs, work = dtr_work(graph.arrays, int(room_bytes * factor), heuristic)
            if effort is not None:
                effort.spend(work)
            if runs is not None:
                yield _measured(graph, f"dtr {heuristic}", runs)

    return [seed for name in names for seed in _best(tried(name), budget_bytes)]


def chen_seeds(graph: Graph, budget_bytes: int) -> list[Seed]:
    """Segments at articulation points and anywhere: the fastest of each that fits, or the least."""
    part = forward_part(graph.arrays)
    most = 100 if graph.num_ops <= MANY_OPS else 30

    def tried(candidates: Literal["articulation", "all"]) -> Iterator[Seed]:
        for _, runs in segment_runs(part, candidates=candidates, max_thresholds=most):
            yield _measured(graph, f"chen {candidates}", runs)

    return _best(tried("articulation"), budget_bytes) + _best(tried("all"), budget_bytes)


def saved_bytes_seeds(graph: Graph, budget_bytes: int) -> list[Seed]:
    """Knapsack and minimum cut: the fastest setting of the knob that fits, or the least peak."""
    part = forward_part(graph.arrays)
    num = 20 if graph.num_ops <= MANY_OPS else 8
    settings = selections(part, [k / num for k in range(num)])
    return _best((_measured(graph, "saved bytes", runs) for _, _, runs in settings), budget_bytes)


def saved_bytes_start(graph: Graph, budget_bytes: int) -> Seed | None:
    """The fastest setting of the knob of `saved_bytes` that fits; ``None`` where none does.

    A few settings, and then halves of the stretch above the largest that fits: the peak falls with
    the knob, but for small values. There is none for a graph without a backward.

    Notes
    -----
    10,000 ops take a fifth of a second.
    """
    part = forward_part(graph.arrays)
    if not 0 < part.num_ops < graph.num_ops:
        return None
    found: list[Seed] = []
    low, high = -1.0, 1.0
    at = [k / _FEW_SETTINGS for k in range(_FEW_SETTINGS, -1, -1)]

    def settings() -> Iterator[float]:
        """Each depends on the peak of the one before, which is in `found` by then."""
        nonlocal low, high
        for fraction in at:
            yield fraction
            if found[-1].peak_bytes <= budget_bytes:
                low = fraction
                break
            high = fraction
        for _ in range(_HALVINGS if low >= 0 else 0):
            middle = (low + high) / 2
            yield middle
            if found[-1].peak_bytes <= budget_bytes:
                low = middle
            else:
                high = middle

    for _, _, runs in selections(part, settings()):
        found.append(_measured(graph, "saved bytes", runs))
    fitting = [seed for seed in found if seed.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda seed: seed.makespan_s, default=None)


def kusumoto_seeds(graph: Graph, budget_bytes: int) -> list[Seed]:
    """Lower sets of the approximate family, for either objective; none for very many ops."""
    part = forward_part(graph.arrays)
    if part.num_ops == graph.num_ops:
        return []
    try:
        masks = family_masks(part, "approximate", MAX_LOWER_SETS)
    except PlannerLimitError:
        return []

    room_bytes = budget_bytes - graph.static_bytes

    def tried(objective: Literal["time", "memory"]) -> Iterator[Seed]:
        for _, runs in lower_set_runs(
            part, masks, room_bytes, objective=objective, num_limits=12, max_steps=200
        ):
            yield _measured(graph, f"kusumoto {objective}", runs)

    return _best(tried("time"), budget_bytes) + _best(tried("memory"), budget_bytes)


def _measured(graph: Graph, name: str, runs: NDArray[np.int32]) -> Seed:
    simulation = simulate(graph, Schedule(graph.op_names, runs))
    return Seed(name, runs, simulation.peak_bytes, simulation.makespan_s)


def _best(tried: Iterable[Seed], budget_bytes: int) -> list[Seed]:
    best = min(tried, key=lambda seed: _rank(seed, budget_bytes), default=None)
    return [] if best is None else [best]


def _rank(seed: Seed, budget_bytes: int) -> tuple[float, float]:
    if seed.peak_bytes <= budget_bytes:
        return seed.makespan_s, float(seed.peak_bytes)
    return math.inf, float(seed.peak_bytes)
