"""Rows that say when copies can be made: not before their tensors exist, not after they are read.

Between two moments of a step a link carries what time allows. Of that, copies of tensors that are
written late have only the rest of the time, and copies of tensors that are read early have only its
beginning: as of jobs on one machine with release times and with deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graphs._milp import Floats, Ints, Milp

# Rows of one kind between two moments: more hardly say more.
_MOST_STEPS = 64


def add_deadlines(
    milp: Milp,
    when: Ints,
    terms: Sequence[tuple[Ints, Floats]],
    offsets: Floats,
    limits: Floats,
    beside: Sequence[tuple[int, float]],
) -> None:
    """Add rows: what the items up to each deadline take is at most the time until then.

    Parameters
    ----------
    when
        The deadline of each item: an index into `limits`.
    terms
        (columns, coefficients) with one entry for each item; -1 for no column. An item takes
        `offsets` plus these.
    limits
        The time until each deadline; must ascend.
    beside
        Columns, and their coefficients, on the left side of every row.

    Notes
    -----
    A row for each of at most 64 deadlines; an item counts from the first of these on that is not
    before its own. O(items) non-zeros.
    """
    steps = np.unique(when)
    if not steps.size:
        return
    if steps.size > _MOST_STEPS:
        steps = steps[np.unique(np.linspace(0, steps.size - 1, _MOST_STEPS).round().astype(int))]
    place, num = np.searchsorted(steps, when), steps.size
    rows = np.arange(num)
    fixed = np.bincount(place, offsets, num)
    parts: list[tuple[Any, Any, Any]] = []
    least = most = float(np.abs(offsets).sum())
    for columns, values in terms:
        parts.append((place, columns, -values))
        least += float(np.maximum(0, -values).sum())
        most += float(np.maximum(0, values).sum())
    taken = milp.variables(num, lb=-least, ub=most)
    milp.placed(num, (rows, taken, 1.0), (rows[1:], taken[:-1], -1.0), *parts, lb=fixed, ub=fixed)
    milp.placed(
        num,
        (rows, taken, 1.0),
        *((rows, np.full(num, column), value) for column, value in beside),
        lb=-np.inf,
        ub=limits[steps],
    )
