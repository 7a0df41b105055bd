"""Where to cut: ops whose first runs promise much, and what a relaxation with cuts there takes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from schedsim.dataflow.graph import Graph

from ._cut_model import longer_intervals
from ._cut_table import Cut, CutTable, Floats
from ._milp import MOST_OF_SIMPLEX, relaxation_work
from ._primal_dual import steps_work

# Cuts are spread over ops where what must be evicted costs that share of the most, and more widely
# where prices are known.
_PROMISING, WIDELY = 0.15, 0.02
# So many steps of the first-order method, for each cut, bring a relaxation within some percent of
# its optimum; fewer where there are no intervals of many lengths.
_STEPS_A_CUT, _FEWER_STEPS = 20, 10
# None where memory has a price of less than that share of the largest.
_PRICED = 0.02

LOOK_CUTS = 6
"""Up to so many cuts, prices do not count: the relaxation of these shows what more of them need."""


class CutPlaces:
    """The ops of a graph as places of cuts.

    Attributes
    ----------
    promise : (num_ops,)
        About what the cut at each op proves.
    prices
        Of memory at the cuts of the last relaxation.
    doubling
        Whether relaxations look at intervals of many lengths.
    """

    def __init__(self, graph: Graph, table: CutTable) -> None:
        self.graph, self.table = graph, table
        self.promise: Floats = np.zeros(graph.num_ops)
        self.prices: dict[int, float] = {}
        self.doubling = False
        self._cuts: dict[int, Cut] = {}

    def cut(self, op: int) -> Cut:
        """The cut at `op`, made once."""
        if op not in self._cuts:
            self._cuts[op] = self.table.cut(op)
        return self._cuts[op]

    def choose(self, chosen: list[int], ops: list[int]) -> None:
        """Add those of `ops` to `chosen` whose place among the others is sure."""
        for op in ops:
            if op not in chosen and self.is_related(op, chosen):
                chosen.append(op)

    def is_related(self, op: int, chosen: list[int]) -> bool:
        """Whether the first run of `op` is surely before or after those of all the others."""
        cut = self.cut(op)
        return all(cut.before[other] or cut.after[other] for other in chosen)

    def spread(self, count: int, *, first: int = 0, share: float = _PROMISING) -> list[int]:
        """Ops at which something must be evicted, one in each of `count` stretches; worst first.

        From op `first` on, and where the promise is more than `share` of the most.
        """
        some = np.flatnonzero(self.promise > share * self.promise.max())
        some = some[some >= first]
        if not some.size:
            return []
        edges = np.linspace(some[0], some[-1] + 1, count + 1).astype(int)
        found = {
            int(low + np.argmax(self.promise[low:high]))
            for low, high in pairwise(edges.tolist())
            if high > low
        }
        return sorted(found, key=lambda op: (-self.promise[op], op))

    def placed(self, count: int) -> list[int]:
        """About `count` ops to cut at.

        Where intervals of many lengths count, from the first op on whose memory has a price.
        """
        chosen: list[int] = []
        if count <= LOOK_CUTS or not self.prices:
            self.choose(chosen, self.spread(count))
            return chosen
        first = 0
        if self.doubling:
            least = _PRICED * max(self.prices.values())
            first = min(op for op, price in self.prices.items() if price >= least)
        self.choose(chosen, self.spread(count, first=first, share=WIDELY))
        return chosen

    def affords(self, ops: list[int], left: float) -> bool:
        """Whether so much effort is enough for the relaxation with cuts at `ops`."""
        likely = self.likely_nonzeros(ops)
        if likely <= MOST_OF_SIMPLEX:
            return relaxation_work(likely) <= left
        steps_a_cut = _STEPS_A_CUT if self.doubling else _FEWER_STEPS
        return steps_work(likely, steps_a_cut * len(ops)) <= left

    def likely_nonzeros(self, ops: list[int]) -> float:
        """About the non-zeros of a relaxation with cuts at `ops`."""
        arrays = self.graph.arrays
        place = np.sort(np.array(ops, dtype=np.int64))
        tensors = arrays.write_start[place + 1]
        each = 3.0 * arrays.read_start[place + 1] + 4.0 * tensors
        total = float(each.sum())
        for k, _ in longer_intervals(place.size, doubling=self.doubling):
            total += float(each[k] + 3 * place[k])
        return total
