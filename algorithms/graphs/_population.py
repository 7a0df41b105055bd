"""Population annealing: many walkers cool together, and the worse go on from the better.

Within little memory, what an annealing comes to is decided early and by chance. Where walkers that
have decided badly take over the schedules of others on the way, the work goes to what is promising
(K. Hukushima and Y. Iba, Population annealing and its application to a spin glass, 2003; they draw
who goes on by weights, and here the worst quarter goes on from the best).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._pool import Pool, RoundPart
from ._walker import SMALL_OPS, GraphWalker, Kind

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# The kinds of its walkers, in turn, by the share of repaired moves: which is better depends
# on the graph, and the better ones spread.
_KINDS = tuple(Kind(thorough, 0.5) for thorough in (0.0, 0.005, 0.0, 0.05))

# The share of the work that the walkers take together, and the least of each for each op; how many
# they are at most on small graphs and on others, and at least.
_SHARE, _PER_OP, _SMALL, _LARGE, _FEWEST = 0.5, 4e-4, 48, 16, 8

# So many times the walkers meet on their way down. From that share of the way on, that share of
# them go on from the same share of the best; earlier, a schedule says little about its end.
_LEVELS, _SINCE, _REPLACED = 12, 0.3, 0.25

# The numbers of these walkers begin where those of no other walkers are.
_NUMBER = 100


class Population:
    """The population of one search."""

    def __init__(self, search: GraphSearch, pool: Pool[GraphWalker]) -> None:
        self.search, self.pool = search, pool

    def run(self, lines: Sequence[NDArray[Any]]) -> list[GraphWalker]:
        """The best walker, if it fits; none where work is short. They begin on `lines` in turn.

        In the end most have come from the same schedule, so that others have nothing to add.
        """
        search, pool, effort = self.search, self.pool, self.search.effort
        work, num_ops = _SHARE * effort.left, search.graph.num_ops
        most = _SMALL if num_ops < SMALL_OPS else _LARGE
        count = min(most, int(work / (_PER_OP * num_ops)))
        if count < _FEWEST:
            return []
        walkers = [
            search.make(_NUMBER + k, lines[k % len(lines)], kind=_KINDS[k % len(_KINDS)])
            for k in range(count)
        ]
        for level in range(_LEVELS):
            part = RoundPart(0, level / _LEVELS, (level + 1) / _LEVELS)
            pool.walk(walkers, part, min(1.0, work / _LEVELS / max(1e-9, effort.left)))
            if pool.winner is not None or pool.halted.is_set() or search.is_done(pool):
                break
            if _SINCE <= part.high < 1.0:
                self._replace_worst(walkers)
        best = min(walkers, key=lambda one: one.rank)
        return [best] if best.best_s < math.inf else []

    def _replace_worst(self, walkers: list[GraphWalker]) -> None:
        """Have the worst walkers go on from the schedules of the best.

        A walker is as good as its step is short, with its bytes above the limit at the price of
        most walkers.
        """
        price = float(np.median([walker.rules.price[0] for walker in walkers]))
        order = sorted(walkers, key=lambda walker: walker.cost_s(price))
        count = int(_REPLACED * len(walkers))
        taken = [(one.runs(), one.rules.price[0]) for one in order[:count]]
        for walker, (runs, its_price) in zip(order[-count:], taken, strict=True):
            walker.take(runs)
            walker.rules.price[0] = its_price
