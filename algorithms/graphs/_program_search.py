"""A search that goes from a schedule to faster ones, one integer program after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

Ints = NDArray[np.int64]


class ProgramSearch(ABC):
    """The search; what its programs are is up to its kinds.

    Parameters
    ----------
    line : (runs,)
        A schedule that fits.
    seed
        Of the draws of what is free in a program.

    Attributes
    ----------
    best_s, best_runs
        The fastest schedule so far.
    is_done
        Whether no program is left that may find more.
    """

    def __init__(self, graph: Graph, budget_bytes: int, line: Ints, *, seed: int) -> None:
        self.graph, self.budget_bytes = graph, budget_bytes
        self.best_runs = line
        self.best_s = simulate(graph, Schedule(graph.op_names, line)).makespan_s
        self.is_done = False
        self._random = np.random.default_rng(seed)
        self._idle = 0  # programs in a row that have changed nothing
        self._is_hard = False  # whether the first node of a program has not ended

    @property
    def rank(self) -> tuple[int, float]:
        """As of a walker."""
        return 0, self.best_s

    def run(
        self,
        effort: Effort,
        enough_s: float,
        report: Callable[[float], object] = lambda _: None,
        is_halted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Solve programs until none may find more, the effort is spent, or `enough_s` is met."""
        while not (self.is_done or is_halted() or effort.is_over(self.best_s)):
            if self.best_s <= enough_s:
                return
            effort.spend(self._solve_next(effort))
            report(self.best_s)

    @abstractmethod
    def _solve_next(self, effort: Effort) -> float:
        """Solve another program, for which `effort` is left; the work that it takes."""

    def _take(self, runs: Ints) -> bool:
        """Go on from there, if the simulator agrees that it is better; whether it does."""
        simulation = simulate(self.graph, Schedule(self.graph.op_names, runs))
        if simulation.peak_bytes > self.budget_bytes or simulation.makespan_s >= self.best_s:
            return False
        self._go_on(runs, simulation.makespan_s)
        return True

    def _go_on(self, runs: Ints, best_s: float) -> None:
        self.best_runs, self.best_s = runs, best_s
        self._idle, self.is_done = 0, False
