"""One annealing through many budgets: its limit comes down, or goes up, and it never starts anew.

A schedule within one budget is close to good ones within the next. A search at each budget alone
costs a large graph seconds before it has a schedule; from one budget to the next there is little to
repair, or little to drop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._anneal import Found
from ._packed_graph import pack_graph
from ._walker import GraphWalker

# The temperature at each budget, in mean op times: from warmer starts it loses what it came with.
_WARM = 0.3
# The work at a budget comes in so many parts, or more where each would be longer than that.
_PARTS, _LONGEST = 5, 0.05


class BudgetSweep:
    """A walker that goes from budget to budget; its first schedule is store-all."""

    def __init__(self, graph: Graph, *, free: bool, seed: int) -> None:
        self.graph = graph
        runs = np.arange(graph.num_ops, dtype=np.int64)
        peak_bytes = simulate(graph, Schedule.store_all(graph)).peak_bytes
        rules = (peak_bytes - graph.static_bytes, free)
        packed = pack_graph(graph.arrays)
        self._walker = GraphWalker.of(graph, packed, runs, number=0, seed=seed, rules=rules)
        self._walker.end_greedy()
        self._heat_s = _WARM * graph.store_all_s / graph.num_ops or 1e-12

    def go_on_from(self, schedule: Schedule) -> None:
        """Begin the next budget with `schedule`, if there is room to search around it."""
        runs: NDArray[np.int64] = schedule.bind(self.graph).astype(np.int64)
        self._walker.take(runs)

    def at(self, budget_bytes: int, effort: Effort) -> Simulation | None:
        """The fastest schedule found within the budget; ``None`` where none is.

        The walker goes on from there, or from where it came to.
        """
        walker = self._walker
        walker.rules = replace(walker.rules, limit=budget_bytes - self.graph.static_bytes)
        walker.found = Found(walker.found.runs, np.array([np.inf, 0.0]))
        walker.note_best()
        walker.heat_s = self._heat_s
        part = min(effort.left / _PARTS, _LONGEST)
        while not effort.is_over():
            work, _ = walker.anneal(effort.share, min(part, effort.left), 2**62)
            effort.spend(max(work, 1e-9))
        if not walker.found.best[1]:
            return None
        runs = walker.best_runs.copy()
        walker.take(runs)
        return simulate(self.graph, Schedule(self.graph.op_names, runs))
