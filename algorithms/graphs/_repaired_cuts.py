"""A plan where the schedule of the cuts does not fit: it is annealed until it does, and longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .._pool import Pool, RoundPart
from ._lean import leanest_schedule
from ._packed_graph import pack_graph
from ._walker import GraphWalker
from .bounds import least_memory_bytes

# The share of the effort that two walkers have together, before the better one goes on alone.
_TOGETHER = 0.5

# So many of the last schedules that the cuts asked for are replayed: the later ones know more cuts.
_LOOKED_AT = 4


class RepairedCuts:
    """Two walkers: on the schedule that the cuts ask for, and on the graph's own order.

    Attributes
    ----------
    moves
        Moves of the walkers.
    """

    def __init__(self, graph: Graph, budget_bytes: int, seed: int) -> None:
        self.graph, self.seed, self.moves = graph, seed, 0
        self.budget_bytes = min(budget_bytes, 2**53)

    def run(
        self, suggested: Sequence[Schedule], enough_s: float, effort: Effort
    ) -> Schedule | None:
        """The fastest schedule found that fits; the search ends where it takes `enough_s`."""
        packed = pack_graph(self.graph.arrays)
        lines = [self._usual()]
        if suggested:
            lines.insert(0, self._closest(suggested).bind(self.graph).astype(np.int64))
        rules = (self.budget_bytes - self.graph.static_bytes, False)
        walkers = [
            GraphWalker.of(self.graph, packed, line, number=k, seed=self.seed, rules=rules)
            for k, line in enumerate(lines)
        ]
        with Pool[GraphWalker](effort, 2, enough_s) as pool:
            try:
                for number, share in enumerate((_TOGETHER, 1.0)):
                    pool.walk(walkers, RoundPart(number), share)
                    walkers = [min(walkers, key=lambda walker: walker.rank)]
                    if walkers[0].best_s <= enough_s or effort.is_over(walkers[0].best_s):
                        break
            except KeyboardInterrupt:
                effort.cancel()
            self.moves = pool.moves
        best = walkers[0]
        return Schedule(self.graph.op_names, best.best_runs) if best.best_s < np.inf else None

    def lean(self, effort: Effort) -> Simulation:
        """Where nothing is found: the schedule of least peak that depends on the graph alone."""
        least_bytes = least_memory_bytes(self.graph)[0]
        packed, is_over = pack_graph(self.graph.arrays), effort.out_of_time
        return leanest_schedule(
            self.graph, packed, [self._usual()], least_bytes, False, is_over=is_over
        )

    def _closest(self, suggested: Sequence[Schedule]) -> Schedule:
        """The schedule of the least peak."""
        return min(suggested[-_LOOKED_AT:], key=lambda one: simulate(self.graph, one).peak_bytes)

    def _usual(self) -> NDArray[np.int64]:
        return np.arange(self.graph.num_ops, dtype=np.int64)
