"""The walkers that a search begins with, by what they start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._seeds import saved_bytes_start
from ._walker import ALONE, GraphWalker, num_walkers

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

Lines = Sequence[NDArray[Any]]

SLOW_OPS = 3000
"""Graphs of so many ops and more are slow: one walker has all of the work, after a scout."""

# From so many ops on, one walker starts from what is best for the forward to save, at that share of
# the usual temperature: from hotter starts it loses what it began with. And about the work of that
# start for each op.
_MANY_OPS, _COOL, _SAVED_PER_OP = 300, 0.1, 2e-5


def first_walkers(
    search: GraphSearch, given: Lines, usual: Lines, starts: Sequence[Schedule]
) -> Sequence[Callable[[], GraphWalker]]:
    """What makes each walker: on the given lines, on what to save, and on the usual lines.

    `starts` are the schedules of the given lines. Where there is one start alone, on the largest
    graphs one walker has all of the work: two would each end half as deep.
    """
    makers = [partial(search.make, i, line) for i, line in enumerate(given)]
    if (saved := line_to_save(search, starts)) is not None:
        makers.append(partial(search.make, len(given), saved, cool=_COOL))
    search.has_one_start = not makers
    num_ops, counted = search.graph.num_ops, search.effort.counted
    if search.one_alone and num_ops >= SLOW_OPS:
        return [partial(search.make, 0, usual[0], greedy=True, kind=ALONE)]
    few = 2 if counted else search.num_threads
    count = max(max(len(given), saved is not None) + 1, num_walkers(num_ops, few))
    makers += [
        partial(search.make, i, usual[i % len(usual)], greedy=True)
        for i in range(count - len(makers))
    ]
    return makers


def line_to_save(search: GraphSearch, starts: Sequence[Schedule]) -> NDArray[Any] | None:
    """The runs of the best choice of what the forward saves, where it fits and beats `starts`.

    On thousands of ops it is there before the walkers have come within the limit, and often faster
    than what they find in seconds; small graphs need no such help.
    """
    graph, effort = search.graph, search.effort
    if graph.num_ops < _MANY_OPS or not np.isfinite(search.bound.bound_s) or effort.is_over():
        return None
    effort.spend(_SAVED_PER_OP * graph.num_ops)
    saved = saved_bytes_start(graph, search.budget_bytes)
    if saved is None:
        return None
    steps = [simulate(graph, one) for one in starts]
    fast = [step.makespan_s for step in steps if step.peak_bytes <= search.budget_bytes]
    return saved.runs if saved.makespan_s < min(fast, default=np.inf) else None
