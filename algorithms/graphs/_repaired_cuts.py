"""A plan where the schedule of the cuts does not fit: it is annealed until it does, and longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .._pool import Pool, RoundPart
from ._lean import lean_schedule
from ._packed_graph import PackedGraph, pack_graph
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
    lean
        Where nothing fits, the schedule of least peak that depends on the graph alone.
    """

    def __init__(self, graph: Graph, budget_bytes: int, seed: int) -> None:
        self.graph, self.seed, self.moves = graph, seed, 0
        self.budget_bytes = min(budget_bytes, 2**53)
        self.lean: Simulation | None = None

    def run(
        self, suggested: Sequence[Schedule], enough_s: float, effort: Effort
    ) -> Schedule | None:
        """The fastest schedule found that fits; the search ends where it takes `enough_s`."""
        packed = pack_graph(self.graph.arrays)
        usual = np.arange(self.graph.num_ops, dtype=np.int64)
        lines = [usual]
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
        [best] = walkers[:1]
        if best.best_s < np.inf:
            return Schedule(self.graph.op_names, best.best_runs)
        return self._lean(packed, [usual], effort)

    def _closest(self, suggested: Sequence[Schedule]) -> Schedule:
        """The schedule of the least peak."""
        return min(suggested[-_LOOKED_AT:], key=lambda one: simulate(self.graph, one).peak_bytes)

    def _lean(
        self, packed: PackedGraph, lines: list[np.ndarray], effort: Effort
    ) -> Schedule | None:
        least_bytes = least_memory_bytes(self.graph)[0]
        self.lean = lean = lean_schedule(
            self.graph, packed, lines, least_bytes, False, is_over=effort.out_of_time
        )
        return lean.schedule if lean.peak_bytes <= self.budget_bytes else None
