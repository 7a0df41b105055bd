"""Schedules of little memory, as starts of walkers where nothing fits, and as the least budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.simulator import Simulation

from .._pool import Pool
from ._lean import lean_schedule, lean_work, leanest_schedule, leanest_work
from ._packed_graph import PackedGraph
from ._walker import GraphWalker

Lines = Sequence[NDArray[Any]]

# The most of what is left of the work that the leanest schedule may take for a walker's start.
_LEANEST_SHARE = 0.2


class LeanStarts:
    """Those of one search.

    Attributes
    ----------
    found
        The schedule of the least peak, once one was looked for.
    """

    def __init__(
        self, graph: Graph, packed: PackedGraph, least_bytes: int, free: bool, effort: Effort
    ) -> None:
        self.graph, self.packed, self.least_bytes = graph, packed, least_bytes
        self.free, self.effort = free, effort
        self.found: Simulation | None = None
        self._job: Future[Simulation] | None = None

    def begin(self, pool: Pool[GraphWalker], lines: Lines) -> None:
        """Begin to look for a lean schedule beside the walkers."""
        self._job = pool.submit(partial(self._find, lean_schedule, lines))

    def end(self, pool: Pool[GraphWalker]) -> Simulation | None:
        """What was begun, and nothing a second time."""
        if self._job is None:
            return None
        self.found, self._job = pool.wait(self._job), None
        return self.found

    def take(self, pool: Pool[GraphWalker]) -> Simulation | None:
        """What was begun, for a walker, which counts as work."""
        lean = self.end(pool)
        if lean is not None:
            self.effort.spend(lean_work(self.graph))
        return lean

    def take_leanest(self, pool: Pool[GraphWalker], lines: Lines) -> Simulation | None:
        """The leanest schedule, for a walker, where the work is enough for it."""
        if self.effort.moves is not None:
            return None
        if leanest_work(self.graph) > _LEANEST_SHARE * self.effort.left:
            return None
        self.found = pool.wait(pool.submit(partial(self._find, leanest_schedule, lines)))
        self.effort.spend(leanest_work(self.graph))
        return self.found

    def find_leanest(self, lines: Lines) -> None:
        """Look for the leanest schedule, whatever work it takes."""
        self.found = self._find(leanest_schedule, lines)

    def _find(self, kind: Callable[..., Simulation], lines: Lines) -> Simulation:
        """The schedule of little peak, of that kind, that does not depend on the budget.

        The leanest fits at every budget at which this search has named its peak as the least budget
        found. Where the time is up before, it is the best of what was complete by then.
        """
        return kind(
            self.graph,
            self.packed,
            lines,
            self.least_bytes,
            self.free,
            is_over=self.effort.out_of_time,
        )
