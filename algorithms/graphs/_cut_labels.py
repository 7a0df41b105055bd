"""What variables and rows of the programs of cuts stand for, from one choice of cuts to the next.

A label is a kind, the ops of the two cuts between which something happens, and a tensor, an op or
a read. A program of other cuts has some labels of the program before, and others between cuts that
lay farther apart: what the first-order method came to for the one is where it begins for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALIVE, AGAIN, ROOM, NEED, INPUT, KEPT, PART = range(7)
"""Variables ``alive`` and ``again``; rules 4, 1, 2, 3 and 5 of `_cut_model`."""


@dataclass(frozen=True, slots=True)
class CutLabels:
    """Labels as numbers, which sort by kind, first cut, second cut and item.

    Attributes
    ----------
    num_ops
        Of the graph; it stands for the end as a cut.
    num_items
        Above every number of a tensor, of an op and of a read.
    """

    num_ops: int
    num_items: int

    def of(self, kind: int, begin: int, end: int, items: Any) -> Ints:
        """The labels of `items` between the cuts at the ops `begin` and `end`."""
        places = self.num_ops + 1
        found: Ints = ((kind * places + begin) * places + end) * self.num_items + np.asarray(items)
        return found

    def parts(self, labels: Ints) -> tuple[Ints, Ints, Ints]:
        """Kinds, first and second cuts of labels; the kind is negative where there is none."""
        rest, places = labels // self.num_items, self.num_ops + 1
        return rest // places**2, rest // places % places, rest % places

    def carried(self, known: Ints, values: Floats, wanted: Ints, cuts: Ints) -> Floats:
        """For each label `wanted`, the value of that label, or of one that reaches farther.

        `known` are the labels of `values`, and `cuts` the ops of their cuts, ascending. What lies
        between two cuts that were not there has the value from the last cut before to the first
        behind; 0 where there was none. O((known + wanted) log known).
        """
        order = np.argsort(known)
        known, values = known[order], values[order]
        found, is_known = _values(known, values, wanted)
        missing = np.flatnonzero(~is_known & (wanted >= 0))
        kind, begin, end = self.parts(wanted[missing])
        ends = np.concatenate([[-1], cuts, [self.num_ops]])
        before = ends[np.searchsorted(ends, begin, side="right") - 1]
        behind = ends[np.searchsorted(ends, end)]
        before = np.where(kind == ALIVE, behind, before)
        places = self.num_ops + 1
        wider = ((kind * places + before) * places + behind) * self.num_items
        wider += wanted[missing] % self.num_items
        found[missing] = np.where(before >= 0, _values(known, values, wider)[0], 0.0)
        return found


def _values(known: Ints, values: Floats, wanted: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """The values of the labels that are among the `known` ones, ascending, and which these are."""
    if not known.size:
        return np.zeros(wanted.size), np.zeros(wanted.size, dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    there = known[at] == wanted
    return np.where(there, values[at], 0.0), there
