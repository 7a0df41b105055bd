"""The search of large graphs within little memory, by walkers that give bytes a price.

Walkers that look at the peak alone decide early where memory is short, and keep to that. Where most
of the step is above the limit, a price for bytes at every run finds faster schedules, and sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from .._pool import Pool, RoundPart
from ._forward_part import forward_part
from ._order_first import OrderFirst
from ._priced_walker import FITTING, FROM_BOUND, RISING, PriceCourse, priced_walker
from ._start_race import race, starts_from_bound
from ._walker import GraphWalker

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# From so many ops on, where there is no backward and the peak of the graph's order, or of the best
# greedy one, is so many times the limit, bytes have a price, if a first short annealing finds
# nothing within the limit, or nothing that takes less than so many times the store-all time. With
# more room than that, and on training graphs, walkers that look at the peak come to faster ones.
# On fewer than so many ops, integer programs make cheap plans cheaper still.
_FEWEST_OPS, _TIGHT, _TIGHT_FREE, _DEAR = 300, 1.5, 1.3, 1.2
_MERGED_OPS, _MERGED_DEAR = 500, 1.25

# The first annealing may take so much work for each op, and at most that share of what is left.
_FIRST_PER_OP, _FIRST_SHARE = 1e-3, 0.1

# The share of the round after which the bound is taken in.
_MEETING = 0.4

# Where the first annealing finds nothing, another of that share of the work goes beside the bound;
# by the clock, of that share of the time, after which the bound has most of its schedules. What was
# spent on a first plan that is there by then comes off it.
# A walker on the schedule of the bound has the rest; where it does not fit after that share of it,
# one on the leanest schedule goes on instead.
_BESIDE_BOUND, _BESIDE_CLOCK, _LEAST_BESIDE, _ALL_DOWN = 0.15, 0.35, 0.02, 0.7


class PricedRounds:
    """The walkers of one search; they begin on that of `lines`, all legal, of the least peak."""

    def __init__(
        self, search: GraphSearch, pool: Pool[GraphWalker], lines: Sequence[NDArray[Any]]
    ) -> None:
        self.search, self.pool, self._lines = search, pool, lines

    @cached_property
    def _leanest(self) -> tuple[int, NDArray[Any]]:
        """The least peak of the lines, and the first that has it; few searches ask."""
        graph = self.search.graph
        peaks = [simulate(graph, Schedule(graph.op_names, it)).peak_bytes for it in self._lines]
        least = min(peaks)
        return least, self._lines[peaks.index(least)]

    @property
    def line(self) -> NDArray[Any]:
        return self._leanest[1]

    def run(self) -> bool:
        """Search, if this graph and limit ask for it, and say whether they did."""
        search = self.search
        if not self.is_tight:
            return False
        first = search.scout or self._walk_first()
        dear = _MERGED_DEAR if search.graph.num_ops < _MERGED_OPS else _DEAR
        if first.best_s < dear * search.graph.store_all_s:
            return False
        if search.free and first.best_s == np.inf:
            return OrderFirst(search, self.pool, self.line).run()
        search.bound.begin(self.pool)
        if first.best_s == np.inf:
            self.come_down()
            return True
        active = self._make_few([(self.line, RISING), (self.line, FITTING)])
        self.pool.walk(active, RoundPart(0, 0.0, _MEETING), _MEETING)
        if not self._ends_with_bound():
            self.pool.walk(active, RoundPart(0, _MEETING, 1.0), 1.0)
        return True

    @cached_property
    def is_tight(self) -> bool:
        """Whether this graph and limit may ask for prices."""
        search, graph = self.search, self.search.graph
        if search.effort.moves is not None or graph.num_ops < _FEWEST_OPS:
            return False
        if 0 < forward_part(graph.arrays).num_ops < graph.num_ops:
            return False
        tight = _TIGHT_FREE if search.free else _TIGHT
        return self._leanest[0] - graph.static_bytes > tight * search.limit

    def _walk_first(self) -> GraphWalker:
        """Look for any schedule that fits, for a little work, so that there is one soon."""
        search = self.search
        first = priced_walker(search, self.line, FITTING)
        search.ahead.append(first)
        work = _FIRST_PER_OP * search.graph.num_ops
        share = min(_FIRST_SHARE, work / max(1e-9, search.effort.left))
        search.walk_until_any_fits(self.pool, first, RoundPart(0), share)
        return first

    def come_down(self) -> None:
        """From its line to the limit while the bound is made, and then from the bound's schedule.

        Of several that the bound has, the best start is looked for.
        """
        search, pool = self.search, self.pool
        beside = _BESIDE_BOUND if search.effort.counted else _BESIDE_CLOCK
        if any(one.best_s < np.inf for one in search.ahead):
            beside = max(_LEAST_BESIDE, beside - search.ahead_spent / max(1e-9, search.effort.left))
        pool.walk(self._make([(self.line, FITTING)]), RoundPart(0), beside)
        if self._ends_with_bound():
            return
        near = search.bound.near() or [self.line]
        worth = starts_from_bound(search.graph, near, search.bound.bound_s)
        start = race(pool, worth, self._make_from_bound)
        if self._is_over():
            return
        active = self._make_few([(one, FROM_BOUND) for one in (start, *near[1:2])])
        pool.walk(active, RoundPart(0, 0.0, _ALL_DOWN), _ALL_DOWN)
        if self._is_over():
            return
        if search.none_fits() and (leanest := search.begin_leanest(pool, [self.line])):
            pool.walk(leanest, RoundPart(0), 1.0)
        else:
            pool.walk(active, RoundPart(0, _ALL_DOWN, 1.0), 1.0)

    def _make_from_bound(self, lines: Sequence[NDArray[Any]]) -> list[GraphWalker]:
        return self._make([(line, FROM_BOUND) for line in lines])

    def _make_few(self, starts: Sequence[tuple[NDArray[Any], PriceCourse]]) -> list[GraphWalker]:
        """The first of these walkers alone where work is counted: two would each go half as far.

        By the clock the others have threads of their own.
        """
        search = self.search
        few = 1 if search.effort.counted else search.num_threads
        return self._make(starts[:few])

    def _make(self, starts: Sequence[tuple[NDArray[Any], PriceCourse]]) -> list[GraphWalker]:
        """Walkers of the search on these lines that go these courses."""
        made: list[GraphWalker] = []
        for line, course in starts:
            made.append(priced_walker(self.search, line, course))
            self.search.walkers.append(made[-1])
        return made

    def _ends_with_bound(self) -> bool:
        """Take in the bound, or by the clock what is there of it; whether all is done then."""
        if self.search.effort.counted:
            self.search.bound.join(self.pool)
        else:
            self.search.bound.learn(self.pool)
        return self._is_over()

    def _is_over(self) -> bool:
        return self.pool.winner is not None or self.search.is_done(self.pool)
