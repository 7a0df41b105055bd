"""The search behind `local_search`: walkers, and the bound beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.kernels.compiled import at_hand
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .._pool import Pool, RoundPart
from ._anneal import walk
from ._bound_beside import BoundBeside
from ._cut_table import Order
from ._first_plan import walk_to_first_plan
from ._first_walkers import SLOW_OPS, first_walkers
from ._lean_starts import LeanStarts
from ._packed_graph import pack_graph
from ._priced_rounds import PricedRounds
from ._program_search import ProgramSearch
from ._walker import GraphWalker, Kind, none_of
from ._walker_rounds import FIRST_MEETING, WalkerRounds
from .bounds import least_memory_bytes
from .free_order import greedy_orders

# No peak is above this; larger budgets would not fit in 64 bits.
_MOST_BYTES = 2**53

# On slow graphs a scout comes before the walkers where none of them fits, with that share of the
# effort and of the usual temperature of the peak: it is within most limits after a fifth of the
# work that others take. And the bound begins when the walkers have met for the first time. On fewer
# ops the others are in time, and where memory is tight they need all of the work.
_SCOUTED, _SCOUT_WARM = 0.06, 0.2

# On large graphs within little memory whose order is free, the bound has nearly all that it ever
# proves after that share of its work.
_FREE_BOUND = 0.15

# More than any schedule takes, and finite.
_ANY_S = 1e300


class GraphSearch:
    """The search itself: what its walkers share, and the best that they and the bound come to.

    Attributes
    ----------
    walkers
        All walkers but the `scout` and those sent `ahead`, short ones whose schedules no other goes
        on from.
    has_one_start
        Whether all walkers start from the graph's order; where it is free, from greedy ones, too.
    ahead_spent
        The work that a first plan took.
    programs
        Searches by integer programs of what the walkers came to.
    names_least
        Whether the leanest schedule is looked for where nothing fits, whatever work it takes.
    """

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        order: Order,
        effort: Effort,
        *,
        seed: int,
        num_threads: int | None,
        gap: float,
    ) -> None:
        self.graph, self.free, self.seed = graph, order == "free", seed
        self.budget_bytes = max(-_MOST_BYTES, min(_MOST_BYTES, budget_bytes))
        self.effort = effort
        self.limit = self.budget_bytes - graph.static_bytes
        self.least_bytes, self.least_op = least_memory_bytes(graph)
        self.packed = pack_graph(graph.arrays)
        self.num_threads = num_threads or os.cpu_count() or 1
        self.bound = BoundBeside(graph, self.budget_bytes, order, effort, gap)
        self.lean = LeanStarts(graph, self.packed, self.least_bytes, self.free, effort)
        self.walkers: list[GraphWalker] = []
        self.scout: GraphWalker | None = None
        self.ahead: list[GraphWalker] = []
        self.ahead_spent = 0.0
        self.programs: list[ProgramSearch] = []
        self.has_one_start, self.names_least = False, True
        self.moves = 0
        self._winner: GraphWalker | None = None

    def run(self, starts: Sequence[Schedule]) -> None:
        """Search until the effort is spent, or nothing better can be found."""
        bound = self.bound
        if self.budget_bytes < self.least_bytes:
            bound.exclude()
        with Pool[GraphWalker](self.effort, self.num_threads, bound.enough_s) as pool:
            try:
                lines = self._starts(starts)
                given, usual = lines[: len(starts)], lines[len(starts) :]
                self._search(pool, starts, given, usual)
                if self.names_least and self.best() is None:
                    self.lean.find_leanest(usual[:2])
            except KeyboardInterrupt:
                self.effort.cancel()
            except BaseException:
                pool.halted.set()  # or the bound's thread would go on, with nobody to wait for it
                raise
            finally:
                if pool.halted.is_set():
                    bound.halt()
                self.moves, self._winner = pool.moves, pool.winner
                if bound.has_solved and self.effort.counted:
                    self.moves = 0  # how far the walkers came until then is chance
        bound.check()
        if not self.effort.counted and not bound.has_solved and self.moves:
            self.effort.note_clock()

    def _search(
        self,
        pool: Pool[GraphWalker],
        starts: Sequence[Schedule],
        given: list[NDArray[Any]],
        usual: list[NDArray[Any]],
    ) -> None:
        bound, is_feasible = self.bound, bool(np.isfinite(self.bound.bound_s))
        priced = PricedRounds(self, pool, usual[:2])
        if is_feasible:
            bound.prepare(pool)
            if self.free and priced.is_tight:
                bound.shorten(_FREE_BOUND)
        # A graph that the bound solves needs no walkers, whose kernels take seconds to compile.
        first = is_feasible and self.effort.counted and not at_hand(walk)
        if first and not self.is_done(pool):
            bound.begin(pool)
            bound.wait()
            if bound.has_solved:
                bound.join(pool)
                return
        self.walkers = pool.all_of(first_walkers(self, given, usual, starts))
        if not is_feasible or self.is_done(pool):
            return
        is_slow = self.effort.counted and self.graph.num_ops >= SLOW_OPS
        if not is_slow:
            bound.begin(pool)
        elif self.effort.moves is None and self.none_fits():
            self._scout(pool, usual[0])
        walk_to_first_plan(self, pool, priced.line if priced.is_tight else usual[0])
        try:
            if not (self.has_one_start and priced.run()):
                WalkerRounds(self, pool, usual[:2]).run()
        finally:
            bound.halt_by_clock(pool)
        bound.join(pool)
        bound.leave_its_work_alone()

    def _scout(self, pool: Pool[GraphWalker], line: NDArray[Any]) -> None:
        """Look for any schedule that fits, so that there is one soon; the walkers do better later.

        They begin warmer, which takes them longer and ends lower.
        """
        self.scout = self.make(0, line)
        self.scout.warm_bytes *= _SCOUT_WARM
        self.walk_until_any_fits(pool, self.scout, RoundPart(0, 0.0, FIRST_MEETING), _SCOUTED)

    def walk_until_any_fits(
        self, pool: Pool[GraphWalker], walker: GraphWalker, part: RoundPart, share: float
    ) -> None:
        """Have `walker` anneal until it has any schedule that fits, which ends no search."""
        pool.enough_s = _ANY_S
        pool.walk([walker], part, share)
        pool.winner, pool.enough_s = None, self.bound.enough_s
        pool.progress.report(walker.best_s)

    def none_fits(self) -> bool:
        return none_of(self.all_walkers())

    @property
    def one_alone(self) -> bool:
        """Whether one walker is better than several: by the clock each has a thread of its own."""
        return self.has_one_start and not self.free and self.effort.counted

    def all_walkers(self) -> list[GraphWalker]:
        return self.walkers if self.scout is None else [*self.walkers, self.scout]

    def _bests(self) -> list[GraphWalker | ProgramSearch]:
        return [*self.all_walkers(), *self.ahead, *self.programs]

    def begin_leanest(
        self, pool: Pool[GraphWalker], lines: Sequence[NDArray[Any]]
    ) -> list[GraphWalker]:
        """A walker that starts from the leanest schedule, where that fits and nothing else does."""
        if not self.none_fits():
            return []
        lean = self.lean.take_leanest(pool, lines)
        if lean is None or lean.peak_bytes > self.budget_bytes:
            return []
        return [self.go_on_from(lean.schedule.bind(self.graph))]

    def go_on_from(self, runs: NDArray[Any]) -> GraphWalker:
        """Another walker, on that schedule."""
        walker = self.make(len(self.walkers), runs)
        walker.begin(0)  # perhaps in the middle of a round
        self.walkers.append(walker)
        return walker

    def is_done(self, pool: Pool[GraphWalker]) -> bool:
        best_s = min((one.best_s for one in self._bests()), default=np.inf)
        best_s = min(best_s, self.bound.best_s)
        return self.bound.has_solved or best_s <= pool.enough_s or self.effort.is_over(best_s)

    def _starts(self, starts: Sequence[Schedule]) -> list[NDArray[Any]]:
        lines: list[NDArray[Any]] = [schedule.bind(self.graph) for schedule in starts]
        usual = np.arange(self.graph.num_ops, dtype=np.int64)
        lines.append(usual)
        if self.free:
            found = greedy_orders(self.graph, self.packed)
            lines += [simulation.schedule.bind(self.graph) for simulation in found[:3]]
        return lines

    def make(
        self,
        number: int,
        line: NDArray[Any],
        greedy: bool = False,
        cool: float = 1.0,
        kind: Kind | None = None,
    ) -> GraphWalker:
        """A walker on `line`, which begins with the greedy repair if `greedy`.

        It begins at that share `cool` of its kind's temperature.
        """
        walker = GraphWalker.of(
            self.graph,
            self.packed,
            line,
            number=number,
            seed=self.seed,
            rules=(self.limit, self.free),
            kind=kind,
        )
        walker.hot_s *= cool
        if not greedy:
            walker.end_greedy()
        walker.note_least()
        return walker

    def best(self) -> Schedule | None:
        """The fastest schedule that fits, of the walkers' and the bound's."""
        cuts = self.bound.cuts
        if self.bound.has_solved and cuts is not None:
            return cuts.best
        found = [one for one in self._bests() if one.best_s < np.inf]
        best = self._winner or min(found, key=lambda one: one.rank, default=None)
        best_s = best.best_s if best is not None else np.inf
        if cuts is not None and cuts.best is not None and cuts.best_s < best_s:
            return cuts.best
        lean = self.lean.found
        if best is None and lean is not None and lean.peak_bytes <= self.budget_bytes:
            return lean.schedule  # walkers count no storage taken over that may not be
        return Schedule(self.graph.op_names, best.best_runs) if best is not None else None

    def least(self) -> Simulation:
        """The simulation of the schedule of the least peak, of the schedules that do not fit."""
        walkers = [walker for walker in self.all_walkers() if walker.least_runs.size]
        if not walkers:
            return simulate(self.graph, Schedule.store_all(self.graph))
        least = min(walkers, key=lambda walker: walker.least_bytes)
        return simulate(self.graph, Schedule(self.graph.op_names, least.least_runs))
