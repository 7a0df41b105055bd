"""Which schedule of the bound to go on from: short annealings of several, and the best is taken.

Such schedules keep and repeat about the right tensors, and are far above the limit. What the way
down from one of them comes to differs by a third of the overhead from what another comes to, hardly
changes with the length of the annealing, and shows after a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from .._pool import Pool, RoundPart
from ._walker import GraphWalker

# The share of the work for all short annealings together, the least of one for each op, and how
# many there are at most.
_SHARE, _PER_OP, _MOST = 0.4, 5e-4, 6


def starts_from_bound(
    graph: Graph, lines: Sequence[NDArray[Any]], bound_s: float
) -> list[NDArray[Any]]:
    """The ones of `lines`, legal schedules of the bound, that are worth a short annealing.

    They keep their order, those that take longer than `bound_s` in turn with the others. No
    schedule that fits is faster than the bound: those above it repeat enough, and perhaps the wrong
    ops; the others have to repeat more. Where none is above it, the first alone is worth it.
    """
    slow: list[NDArray[Any]] = []
    fast: list[NDArray[Any]] = []
    for line in lines:
        step = simulate(graph, Schedule(graph.op_names, line))
        (slow if step.makespan_s >= bound_s else fast).append(line)
    if not slow:
        return fast[:1]
    return [line for line in chain(*zip_longest(fast, slow)) if line is not None]


def race(
    pool: Pool[GraphWalker],
    lines: Sequence[NDArray[Any]],
    make: Callable[[Sequence[NDArray[Any]]], list[GraphWalker]],
) -> NDArray[Any]:
    """The one of `lines` to go on from, or what its short annealing has come to, where that fits.

    It is the first of `lines` where there is no work for several; `make` makes the walkers on some
    of them.
    """
    num_ops = lines[0].max() + 1
    count = min(_MOST, len(lines), int(_SHARE * pool.effort.left / (_PER_OP * num_ops)))
    if count < 2:
        return lines[0]
    walkers = make(lines[:count])
    pool.walk(walkers, RoundPart(0), _SHARE)
    best = min(range(count), key=lambda k: walkers[k].rank)
    return walkers[best].best_runs.copy() if walkers[best].best_s < np.inf else lines[best]
