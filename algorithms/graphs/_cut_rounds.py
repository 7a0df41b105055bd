"""Relaxations of cuts in rounds: each is solved, and shows where the next one has to look.

A round drops what has no price, and adds cuts where the relaxed point has no room, beside the
dearest cuts and between them, and intervals between which the point does not do what is needed. It
begins where the one before came to. Cuts so chosen prove more than several times as many that are
spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ._cut_labels import NEED, ROOM, CutLabels
from ._cut_model import cut_labels, longer_intervals
from ._cut_places import LOOK_CUTS
from ._cut_separation import RelaxedPoint, excess_bytes, missing_intervals
from ._milp import Answer, Floats, Ints, SolvedPoint

if TYPE_CHECKING:
    from ._cut_search import CutSearch

# The cuts of the first round, where intervals of many lengths count, and the share of the work that
# must be enough for them.
_FIRST_ROUND, _FIRST_SHARE = 20, 0.15
# Rounds that share the work, each with so many times that of the one before: where the first of
# them has many cuts, and where it follows a relaxation of a few.
_ROUNDS, _GROWTH = 4, 1.5
_MORE_ROUNDS, _MORE_GROWTH = 5, 1.8
# The rounds end where so many of them have raised the bound by less than that.
_IDLE, _WORTH = 2, 5e-4
# Cuts and intervals are dropped below that share of the largest price.
_KEPT_CUT, _KEPT_INTERVAL = 0.01, 1e-4
# So many new cuts and intervals for each cut that is kept, and of cuts so many at least.
_NEW_CUTS, _FEWEST_CUTS, _NEW_INTERVALS = 0.6, 4, 0.5
# What is worth a new cut, as a share of the budget, and a new interval, of the worst.
_EXCESS, _DEFICIT = 0.002, 0.1
# Beside dear cuts, in this order; and how far before the first cut others are looked for.
_BESIDE, _NEAR = (1, -1, 2), 16


@dataclass(frozen=True, eq=False)
class _FromBefore:
    """What the first-order method begins with: what it came to for other cuts."""

    labels: CutLabels
    place: SolvedPoint
    cuts: Ints

    def __call__(self, columns: Ints, rows: Ints) -> tuple[Floats, Floats]:
        old, carried = self.place, self.labels.carried
        return (
            carried(old.columns, old.x, columns, self.cuts),
            carried(old.rows, old.prices, rows, self.cuts),
        )


class CutRounds:
    """The rounds of one search; cuts are known by their ops, and the end by the number of ops.

    Attributes
    ----------
    ops
        Cuts of the next relaxation, ascending.
    longer
        Its intervals between cuts that are no neighbours.
    """

    def __init__(self, search: CutSearch) -> None:
        self.search = search
        self.labels = cut_labels(search.table)
        self.end = search.graph.num_ops
        self.start: _FromBefore | None = None
        self.dropped: set[int] = set()
        self.ops: list[int] = []
        self.longer: set[tuple[int, int]] = set()

    def run(self, until: float) -> None:
        """Take rounds as long as there is more than `until` of the effort, and they prove more."""
        search = self.search
        left = search.effort.left - until
        if search.relaxed is None or left <= 0 or not search.may(until):
            return
        shares = [_GROWTH**number for number in range(_ROUNDS)]
        self.ops = sorted(self._spread_widely(left))
        if self.ops:
            self.longer = self._of_many_lengths()
        else:
            shares = [_MORE_GROWTH**number for number in range(_MORE_ROUNDS)]
            self.ops, last = search.relaxed
            self.longer = self._of_many_lengths()
            self._choose(last, left * shares[0] / sum(shares))
        known, idle = 0.0, 0
        while search.may(until) and (left := search.effort.left - until) > 0:
            while len(shares) > 1 and not search.places.affords(
                self.ops, left * shares[0] / sum(shares)
            ):
                shares.pop(0)
            share = shares[0] / sum(shares)
            shares = shares[1:] or [1.0]
            ends = [*self.ops, self.end]
            at = {op: place for place, op in enumerate(ends)}
            longer = sorted(((at[k], at[last]) for k, last in self.longer), key=_by_length)
            answer = search.relax(self.ops, longer, left * share / search.effort.left, self.start)
            if answer is None or answer.x is None or answer.place is None:
                return
            proven = answer.bound or 0.0
            idle = 0 if proven > known * (1 + _WORTH) else idle + 1
            known = max(known, proven)
            if idle >= _IDLE and len(shares) == 1:
                return
            left = search.effort.left - until
            before = self.ops, self.longer
            self._choose(answer, left * shares[0] / sum(shares))
            if before == (self.ops, self.longer) and answer.finished:
                return

    def _spread_widely(self, left: float) -> list[int]:
        """More cuts than before, where intervals of many lengths prove much.

        None where so much effort is too little for them, or where more were looked at before.
        """
        places = self.search.places
        if not places.doubling or len(places.prices) > LOOK_CUTS:
            return []
        found = places.placed(_FIRST_ROUND)
        return found if places.affords(found, _FIRST_SHARE * left) else []

    def _of_many_lengths(self) -> set[tuple[int, int]]:
        """The intervals that a search without rounds looks at."""
        ends = [*self.ops, self.end]
        pairs = longer_intervals(len(self.ops), doubling=self.search.places.doubling)
        return {(ends[k], ends[last]) for k, last in pairs}

    def _choose(self, answer: Answer, next_work: float) -> None:
        """The cuts and the intervals of the next relaxation, which may take so much work."""
        search, place = self.search, answer.place
        assert place is not None
        prices = self._prices(place)
        point = self._point(place.x)
        self.start = _FromBefore(self.labels, place, np.array(self.ops, dtype=np.int64))
        least = _KEPT_CUT * max(prices.values())
        kept = [op for op in self.ops if prices[op] >= least]
        self.dropped.update(op for op in self.ops if op not in kept)
        chosen = list(kept)
        most = len(kept) + max(_FEWEST_CUTS, int(_NEW_CUTS * len(kept)))
        for op in self._candidates(point, kept, prices):
            if len(chosen) >= most:
                break
            if search.places.promise[op] > 0 and search.places.affords([*chosen, op], next_work):
                search.places.choose(chosen, [op])
        if search.places.doubling:
            found = self._kept_intervals(place) | self._missing(point, len(kept))
            # An interval that is divided now is a long one.
            found |= set(pairwise([*kept, self.end]))
        else:
            found = {(op, self.end) for op in chosen}
        self.ops = sorted(chosen)
        there, neighbours = {*self.ops, self.end}, set(pairwise([*self.ops, self.end]))
        self.longer = {pair for pair in found if there >= set(pair)} - neighbours

    def _missing(self, point: RelaxedPoint, num_kept: int) -> set[tuple[int, int]]:
        """Intervals between which the point does not do what is needed, a few of the worst."""
        search, ends = self.search, [*self.ops, self.end]
        search.effort.spend(search.pairs_work(len(ends)))
        at = {op: number for number, op in enumerate(ends)}
        known = {(at[k], at[last]) for k, last in self.longer}
        missing = missing_intervals(search.table, point, search.times.costs, known)
        some = missing[: max(1, int(_NEW_INTERVALS * num_kept))]
        least = _DEFICIT * missing[0][0] if missing else 0.0
        return {(ends[k], ends[last]) for deficit, k, last in some if deficit >= least}

    def _candidates(
        self, point: RelaxedPoint, kept: list[int], prices: dict[int, float]
    ) -> list[int]:
        """Ops for new cuts, the most promising first."""
        excess = excess_bytes(self.search.table, point)
        excess[self.search.places.promise <= 0] = -np.inf
        least = _EXCESS * self.search.budget_bytes
        worst: list[tuple[float, int]] = []
        stretches = list(pairwise([-1, *kept, self.end]))
        for low, high in stretches:
            if high - low > 1:
                op = low + 1 + int(np.argmax(excess[low + 1 : high]))
                worst += [(float(excess[op]), op)] if excess[op] > least else []
        found = [op for _, op in sorted(worst, key=lambda one: (-one[0], one[1]))]
        known = {*found, *self.dropped, *kept}
        if self.search.places.doubling:
            for dear in sorted(kept, key=lambda op: (-prices[op], op)):
                for op in (dear + far for far in _BESIDE):
                    if 0 <= op < self.end and op not in known:
                        found.append(op)
                        known.add(op)
        for low, high in sorted(stretches, key=lambda one: -_of_ends(prices, one)):
            quarter = (high - low) // 4
            nearest = low + 1 + quarter if low >= 0 else high - _NEAR
            inside = [op for op in range(max(0, nearest), high - quarter) if op not in known]
            if inside:
                found.append(max(inside, key=lambda op: (self.search.places.promise[op], -op)))
        return found

    def _point(self, x: Floats) -> RelaxedPoint:
        """The variables by what they are: first those of all cuts, then those of neighbours."""
        num_cuts, num_tensors = len(self.ops), self.search.table.num_tensors
        alive, again = x[: num_cuts * num_tensors], x[num_cuts * num_tensors :]
        return RelaxedPoint(
            [self.search.places.cut(op) for op in self.ops],
            alive.reshape(num_cuts, num_tensors),
            again[: num_cuts * self.end].reshape(num_cuts, self.end),
        )

    def _prices(self, place: SolvedPoint) -> dict[int, float]:
        """The prices of memory at the cuts."""
        found = dict.fromkeys(self.ops, 0.0)
        kind, begin, _ = self.labels.parts(place.rows)
        rows = np.flatnonzero(kind == ROOM)
        found.update(zip(begin[rows].tolist(), place.prices[rows].tolist(), strict=True))
        return found

    def _kept_intervals(self, place: SolvedPoint) -> set[tuple[int, int]]:
        """The long intervals whose rows have prices."""
        kind, begin, end = self.labels.parts(place.rows)
        rows = np.flatnonzero(kind >= NEED)
        pairs, number = np.unique(begin[rows] * (self.end + 1) + end[rows], return_inverse=True)
        sums = np.bincount(number, place.prices[rows], pairs.size)
        dear = pairs[sums > _KEPT_INTERVAL * sums.max(initial=0.0)]
        found = {(int(pair) // (self.end + 1), int(pair) % (self.end + 1)) for pair in dear}
        return found & self.longer


def _by_length(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[1] - pair[0], pair[0]


def _of_ends(prices: dict[int, float], pair: tuple[int, int]) -> float:
    return prices.get(pair[0], 0.0) + prices.get(pair[1], 0.0)
