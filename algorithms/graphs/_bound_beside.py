"""The lower bound of a search, which is computed in a thread beside the walkers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.simulation.simulator import simulate

from .._pool import Pool
from ._cut_search import CutSearch
from ._cut_table import Order
from ._walker import GraphWalker

# The share of the effort that is spent on the bound: where the effort counts work, and where it
# is seconds.
_BOUND_WORK, _BOUND_SHARE = 0.3, 0.4

# Where moves end the search, the bound may take so much work without any, and another unit for so
# many moves; 2,000 moves on 600 ops take a tenth of a second. From 20,000 moves on, the bound takes
# all that an effort of 20 grants it.
_BOUND_OF_NO_MOVES, _MOVES_PER_UNIT = 0.2, 3_400


class BoundBeside:
    """The bound of one search.

    Parameters
    ----------
    effort
        That of the search: what the bound takes of it is spent when the bound is joined.
    gap
        Gap to the bound at which the search stops.

    Attributes
    ----------
    bound_s, how
        The bound as far as the search knows of it, and what proves it.
    cuts
        What computes it; ``None`` before `prepare`.
    has_solved
        Whether the bound's own schedule is the answer.
    """

    def __init__(
        self, graph: Graph, budget_bytes: int, order: Order, effort: Effort, gap: float
    ) -> None:
        self.graph, self.budget_bytes, self.order = graph, budget_bytes, order
        self.effort, self.gap = effort, gap
        self.bound_s, self.how = graph.store_all_s, "store-all time"
        self.cuts: CutSearch | None = None
        self.has_solved = False
        self._thread: threading.Thread | None = None
        self._is_joined = False  # whether the bound has ended and its result is taken in
        self._spent_before, self._work = 0.0, 0.0
        self._failure: BaseException | None = None

    @property
    def enough_s(self) -> float:
        """A step time at which the search stops."""
        return self.bound_s * (1 + self.gap) * (1 + 1e-12)

    @property
    def best_s(self) -> float:
        """The time of the bound's own schedule, if it has one that the search may know of.

        Where work is counted, it must not matter how early the bound ends.
        """
        if self.cuts is None or not (self._is_joined or not self.effort.counted):
            return np.inf
        return self.cuts.best_s

    def exclude(self) -> None:
        """Note that nothing fits."""
        self.bound_s, self.how = np.inf, "one op alone needs more"

    def prepare(self, pool: Pool[GraphWalker]) -> None:
        """Prove what takes no solver.

        The bound is in no race with the walkers here: it solves many small graphs before they
        start.
        """
        part = self.effort.part(self._share(), watched=_BOUND_SHARE)
        self.cuts = CutSearch(self.graph, self.budget_bytes, self.order, part)
        self.cuts.needs()
        self.cuts.knapsacks()
        self._spent_before = self.effort.spent
        self.learn(pool)

    def _share(self) -> float:
        """The share of what is left that the bound may take: few moves ask for little of it."""
        if not self.effort.counted:
            return _BOUND_SHARE
        if self.effort.moves is None or not self.effort.left:
            return _BOUND_WORK
        few = _BOUND_OF_NO_MOVES + self.effort.moves / _MOVES_PER_UNIT
        return min(_BOUND_WORK, few / self.effort.left)

    def shorten(self, share: float) -> None:
        """Before it begins, keep that share of what it may take; the walkers have the rest."""
        assert self.cuts is not None
        spent = self.cuts.effort.spent
        self.cuts.effort = self.cuts.effort.take(share * self.cuts.effort.left)
        self.effort.spend(spent)
        self._work += spent

    def begin(self, pool: Pool[GraphWalker]) -> None:
        """Begin in a thread of its own, if that has not been done.

        After an interrupt nobody waits for the thread, because its solver cannot be stopped; but it
        is no daemon: a process that ends while the solver runs would be aborted.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._find, args=(pool,))
            self._thread.start()

    def _find(self, pool: Pool[GraphWalker]) -> None:
        assert self.cuts is not None
        try:
            self.cuts.solve_milps()
            # A bound that proves that nothing fits ends no round: the least peak is looked for.
            if not self.effort.counted:
                self.learn(pool)
            if self.cuts.is_done() and (self.cuts.best is not None or not self.effort.counted):
                self.has_solved = self.cuts.best is not None
                pool.halted.set()
        except BaseException as failure:  # raised again by the thread that waits
            self._failure = failure
            pool.halted.set()

    def wait(self) -> None:
        """Wait for its end, in slices, so that an interrupt is seen."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.2)

    def join(self, pool: Pool[GraphWalker]) -> None:
        """Wait for its end, so that its result comes in at the same place every time."""
        self.wait()
        assert self.cuts is not None
        self._is_joined = True
        self._work += self.cuts.effort.spent
        self.effort.spend(self.cuts.effort.spent)
        self.cuts.effort.spent = 0.0
        self.learn(pool)

    def learn(self, pool: Pool[GraphWalker]) -> None:
        """Take in what is proven."""
        cuts = self.cuts
        if cuts is None or cuts.bound_s <= self.bound_s:
            return
        self.bound_s, self.how = cuts.bound_s, cuts.how
        pool.progress.report(bound_s=cuts.bound_s)
        pool.enough_s = self.enough_s

    def halt(self) -> None:
        """Have it end soon."""
        if self.cuts is not None:
            self.cuts.halt()

    def halt_by_clock(self, pool: Pool[GraphWalker]) -> None:
        """Where seconds are counted, the walkers' end is that of the bound."""
        if self._thread is not None and self._thread.is_alive() and not self.effort.counted:
            pool.halted.set()
            self.halt()

    def leave_its_work_alone(self) -> None:
        """Take the walkers' work off the effort, where the bound's schedule is the answer.

        How much of it was done is chance, and no later search may depend on it through what is left
        of the effort.
        """
        if self.has_solved and self.effort.counted:
            self.effort.spent = self._spent_before + self._work

    def check(self) -> None:
        """Raise what the thread has raised."""
        if self._failure is not None:
            raise self._failure

    def near(self) -> list[NDArray[Any]]:
        """The schedules of the bound, those first that take about as long as it; none if one fits.

        Schedules of weaker bounds repeat too little to be of use.
        """
        cuts = self.cuts
        if cuts is None or cuts.best is not None:
            return []
        suggested = list(dict.fromkeys(cuts.suggested))
        suggested.sort(key=lambda one: abs(simulate(self.graph, one).makespan_s - self.bound_s))
        return [one.bind(self.graph) for one in suggested]
