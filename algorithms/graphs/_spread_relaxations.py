"""Relaxations of more and more cuts, spread over the step.

On wide graphs many cuts prove more in fractions than a few cuts in whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._cut_places import LOOK_CUTS
from ._milp import MOST_OF_SIMPLEX, relaxation_work

if TYPE_CHECKING:
    from ._cut_search import CutSearch

# Numbers of cuts in relaxations: the next number follows where a relaxation proves so much more.
_SPREAD_CUTS = (3, 6, 12, 16, 20, 24, 32, 48, 64)
_WORTH = 0.003
# The relaxation of the first few cuts shows what more of them need: more intervals, where these
# prove so much more. Where it is large, it may take that share of the relaxations' work.
_DOUBLING_WORTH, _LOOK_SHARE = 0.001, 0.25
# Where that many cuts prove so much more than the first few, this is the relaxations' share.
_MUCH = 0.04

LARGE_SHARE = 0.9
"""The relaxations' share of the effort where they are worth most of it."""


class SpreadRelaxations:
    """The relaxations of one search before its rounds."""

    def __init__(self, search: CutSearch) -> None:
        self.search = search

    def run(self, relaxed_share: float) -> float:
        """Spread more and more cuts; the effort that relaxations must leave."""
        search, places = self.search, self.search.places
        begun = search.effort.left
        until = begun * (1.0 - relaxed_share)
        before: list[int] = []
        first_s, took = 0.0, 0.0
        counts = list(_SPREAD_CUTS)
        while counts:
            count = self._affordable(counts)
            chosen = places.placed(count)
            if len(chosen) <= len(before):
                break
            # Iterations grow with the rows, the time of each does too, and so do the rows
            # themselves.
            growth = (len(chosen) / max(1, len(before))) ** 2.5
            likely = places.likely_nonzeros(chosen)
            most = max(took * growth, relaxation_work(likely))
            if likely > MOST_OF_SIMPLEX and before:
                break  # the rounds choose better cuts for the first-order method
            if not search.may(most + until):
                break
            known_s, left = search.extra_s, search.effort.left
            share = (left - until) / left if search.effort.counted else relaxed_share
            looks = count == LOOK_CUTS
            part = _LOOK_SHARE if looks else 1.0
            search.solve(search.cuts_at(chosen), share * part, integral=False)
            took = left - search.effort.left
            small = search.solved_nonzeros <= MOST_OF_SIMPLEX and count > LOOK_CUTS
            if (looks or small) and not places.doubling and search.may(until + took):
                self._try_doubling(chosen, share)
            if before and search.extra_s < known_s * (1 + _WORTH):
                break
            first_s = first_s or search.extra_s
            if looks and search.effort.counted and search.extra_s > first_s * (1 + _MUCH):
                until = begun * (1.0 - LARGE_SHARE)
            before = chosen
            counts = [one for one in counts if one > count]
        return until

    def _try_doubling(self, chosen: list[int], share: float) -> None:
        """Look at intervals of many lengths from now on, if they prove more at these cuts."""
        search, places = self.search, self.search.places
        known_s, places.doubling = search.extra_s, True
        search.solve(search.cuts_at(chosen), share * _LOOK_SHARE, integral=False)
        places.doubling = search.extra_s >= known_s * (1 + _DOUBLING_WORTH)

    def _affordable(self, counts: list[int]) -> int:
        """The next number of cuts; the first relaxation has more of them where it is large."""
        found = counts[0]
        if found <= LOOK_CUTS and not self._is_small(LOOK_CUTS):
            return LOOK_CUTS
        return found

    def _is_small(self, count: int) -> bool:
        places = self.search.places
        return places.likely_nonzeros(places.placed(count)) <= MOST_OF_SIMPLEX
