"""A search among the mixtures of several schedules, by integer programs of a part of the choices.

Annealings come to schedules that differ in many choices, and what is best of each rarely fits the
others: a better mixture exchanges several runs at once, which single moves do not find. In the
sequence of all their runs, the choices of some ops are free and all others stay as in the best
schedule; the solver finds the best way of these in about a second, and other ops follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort

from ._freed_choices import solve_freed
from ._merged_model import MergedModel
from ._merged_runs import merged_runs, runs_of
from ._program_search import Ints, ProgramSearch

Floats = NDArray[np.float64]

# The non-zeros of the columns of free choices. Where the solver ends within its first node, the
# next program is larger, and else smaller.
_FREE_NONZEROS, _LARGER, _SMALLER, _LARGEST = 46_000.0, 1.1, 0.8, 80_000.0
# The work of a program: at least, and by the square and by the cube of its non-zeros in so many,
# whichever is most; of one of which the first node does not end, of one that is solved on graphs
# where one has not ended, and of others.
_NONZEROS, _LEAST_WORK = 20_000, 0.012
_LIMITED, _SOLVED, _EASY = (0.4, 0.25, 0.1), (0.05, 0.1, 0.045), (_LEAST_WORK, 0.0, 0.015)
# The search ends where so many programs in a row have changed nothing.
_MOST_IDLE = 12


class MergeSearch(ProgramSearch):
    """The search.

    It has no program left that may find more where one with all choices free is solved, where many
    in a row have changed nothing, or where the model charges more than the simulator and has no
    room.

    Parameters
    ----------
    lines
        Schedules with the same order of first runs; the first one fits.
    seed
        Of the draws of what is free.
    """

    def __init__(
        self, graph: Graph, budget_bytes: int, lines: Sequence[Ints], *, seed: int
    ) -> None:
        super().__init__(graph, budget_bytes, lines[0], seed=seed)
        merged = merged_runs(lines, graph.num_ops)
        self.model = MergedModel.of(graph, budget_bytes, merged)
        self.x = self.model.point(runs_of(merged, lines[0], graph.num_ops))
        self.is_done = not self.model.fits(self.x)
        self._choices = np.flatnonzero(self.model.lb < self.model.ub)
        made = self._choices[self.model.op[self._choices] >= 0]
        nonzeros = np.diff(self.model.matrix.indptr)[made]
        self._weight = np.bincount(self.model.op[made], nonzeros, graph.num_ops)
        self._free_nonzeros, self._largest = _FREE_NONZEROS, _LARGEST

    def _solve_next(self, effort: Effort) -> float:
        if effort.counted:  # a program takes no more than what is left
            left = effort.left
            most = math.sqrt(left / _LIMITED[1]) if self._is_hard else math.cbrt(left / _SOLVED[2])
            self._free_nonzeros = min(self._free_nonzeros, most * _NONZEROS)
        return self._solve(self._free(), effort.watchdog_s)

    def _free(self) -> Ints:
        """The variables that are free in the next program: those of ops drawn anywhere.

        How long inputs of the graph are kept is free in all.
        """
        order = self._random.permutation(self.graph.num_ops)
        free = np.zeros(self.graph.num_ops + 1, dtype=np.bool_)
        free[-1] = True
        free[order[np.cumsum(self._weight[order]) <= self._free_nonzeros]] = True
        return self._choices[free[self.model.op[self._choices]]]

    def _solve(self, free: Ints, time_limit_s: float | None) -> float:
        """Find the best values of the variables `free`; the work."""
        self._idle += 1
        self.is_done = self._idle >= _MOST_IDLE
        if not free.size:
            return _LEAST_WORK
        found = solve_freed(self.model, self.x, free, time_limit_s)
        if found.values is not None:
            x = self.x.copy()
            x[free] = found.values
            if self._take(self.model.runs[x[: self.model.runs.size] > 0.5]):
                self.x = x
        solved = found.is_solved
        self.is_done |= solved and free.size == self._choices.size
        if not solved and free.size == self._choices.size:  # once more it would come out the same
            self._free_nonzeros = whole = float(self._weight.sum())
            self._largest = math.sqrt(_SMALLER) * whole
        larger = self._free_nonzeros * (_LARGER if solved else _SMALLER)
        self._free_nonzeros = min(larger, self._largest)
        return self._work(found.nonzeros, solved)

    def _work(self, nonzeros: int, solved: bool) -> float:
        """The work of a program of so many non-zeros, of which the first node ended if `solved`."""
        self._is_hard |= not solved
        least, square, cube = _LIMITED if not solved else _SOLVED if self._is_hard else _EASY
        size = nonzeros / _NONZEROS
        return float(max(least, square * size**2, cube * size**3))
