"""Where first runs are free and nothing fits soon: the leanest order first, and then any order.

With first runs in one order, the bound has schedules that lead to the limit. The bound over any
order has none, and small moves alone seldom find there from a peak of twice the limit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schedsim.plans.progress import searching
from schedsim.simulation.schedule import Schedule

from .._pool import Pool, RoundPart
from ._walker import GraphWalker, Kind

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# The share of the work that goes to the search in one order.
_IN_ORDER = 0.7

# Of the walkers that go on from there: small moves alone, and the cooler the later.
_KINDS = (Kind(0.0, 0.5), Kind(0.0, 1.0), Kind(0.0, 0.25))


class OrderFirst:
    """The two parts of one search; `line` is a legal order without recomputation.

    Attributes
    ----------
    inner
        The search whose first runs keep the order of `line`.
    """

    def __init__(self, search: GraphSearch, pool: Pool[GraphWalker], line: NDArray[Any]) -> None:
        self.search, self.pool, self._line = search, pool, line.astype(np.int64)
        ops = search.graph.ops
        self._graph = replace(search.graph, ops=tuple(ops[i] for i in self._line), recorded=None)
        self.inner: GraphSearch | None = None

    def run(self) -> bool:
        """Search, and say whether anything fitted.

        Otherwise the schedule of the least peak is there for the walkers of the search to go on
        from, and the rest of the work.
        """
        search, pool = self.search, self.pool
        search.bound.begin(pool)
        inner = self._search_in_order()
        if search.effort.counted:
            search.bound.join(pool)
        best = inner.best()
        if best is None:
            search.go_on_from(self._any_order(inner.least().schedule))
            return False
        line = self._any_order(best)
        few = 1 if search.effort.counted else search.num_threads
        number = len(search.walkers)
        walkers = pool.all_of(
            [
                partial(search.make, number + k, line, kind=_KINDS[k % len(_KINDS)])
                for k in range(few)
            ]
        )
        search.walkers += walkers
        if not search.is_done(pool):
            pool.walk(walkers, RoundPart(0), 1.0)
        return True

    def _search_in_order(self) -> GraphSearch:
        """The search of the graph whose first runs keep the order of the line."""
        search = self.search
        with (
            search.effort.part(_IN_ORDER) as part,
            searching("the step in one order of its ops"),  # whose bound does not hold in others
        ):
            self.inner = inner = type(search)(
                self._graph,
                search.budget_bytes,
                "fixed",
                part,
                seed=search.seed,
                num_threads=search.num_threads,
                gap=search.bound.gap,
            )
            inner.names_least = False
            inner.run(())
        self.pool.moves += inner.moves
        return inner

    def _any_order(self, schedule: Schedule) -> NDArray[np.int64]:
        """The runs of a schedule of the inner search, as ops of the graph."""
        return self._line[np.asarray(schedule.bind(self._graph))]
