"""Many short annealings of small moves, of which the best go on.

On small graphs within little memory, what an annealing comes to is decided early and by chance:
the best of many short ones is better than one as long as all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._pool import Pool, RoundPart
from ._walker import SMALL_MOVES, GraphWalker

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

# The share of the work that they take together, the least work of each for each op, how many go at
# once, and how many there are at most: with more work each is longer.
_SHARE, _PER_OP, _AT_ONCE, _MOST = 0.5, 4e-4, 4, 128

# So many of the best go on, with that share of the work of all, from that share of the temperature
# that they began at.
_BEST, _AGAIN, _COOL = 4, 0.25, 0.1

# The numbers of the short ones begin where those of no other walkers are.
_NUMBER = 100


class ShortAnnealings:
    """The short annealings of one search."""

    def __init__(self, search: GraphSearch, pool: Pool[GraphWalker]) -> None:
        self.search, self.pool = search, pool

    def run(self, lines: Sequence[NDArray[Any]]) -> list[GraphWalker]:
        """The best that fit of many short annealings from `lines` in turn; none for little work."""
        search, pool, effort = self.search, self.pool, self.search.effort
        # By the clock they have a thread each.
        together = _AT_ONCE if effort.counted else math.ceil(_AT_ONCE / search.num_threads)
        before = effort.left
        first = _SHARE * (1.0 - _AGAIN) * before
        work = max(_PER_OP * search.graph.num_ops, first * _AT_ONCE / (_MOST * together))
        least_left = before - (1.0 + 1e-9) * first
        found: list[GraphWalker] = []
        number = _NUMBER
        while effort.left - together * work >= least_left:
            tries = [
                search.make(number + k, lines[k % len(lines)], kind=SMALL_MOVES)
                for k in range(_AT_ONCE)
            ]
            number += _AT_ONCE
            pool.walk(tries, RoundPart(0), together * work / effort.left)
            found = _best([*found, *tries])
            if pool.winner is not None or pool.halted.is_set() or search.is_done(pool):
                return found
        for walker in found:
            walker.take(np.array(walker.best_runs))
            walker.hot_s = _COOL * walker.first_hot_s
        if found:
            pool.walk(found, RoundPart(0), _SHARE * _AGAIN * (before / effort.left))
        return found


def _best(found: list[GraphWalker]) -> list[GraphWalker]:
    """The best that fit; of several of the same time the first."""
    best: dict[float, GraphWalker] = {}
    for walker in sorted(found, key=lambda one: one.rank):
        best.setdefault(walker.best_s, walker)
    return [walker for walker in best.values() if walker.best_s < math.inf][:_BEST]
