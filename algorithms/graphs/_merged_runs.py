"""One sequence of runs in which several schedules are contained, and more that none of them is.

Between two first runs it is a shortest common supersequence of what the schedules repeat there. To
leave out some of its runs gives each of the schedules back, and every mixture of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints

Bools = NDArray[np.bool_]

# Beyond so many pairs of repeated runs between two first runs, the one list follows the other.
_MOST_PAIRS = 1 << 20


def merged_runs(lines: Sequence[Ints], num_ops: int) -> Ints:
    """The runs of all `lines`, which have the same order of first runs.

    O(pairs of runs that are repeated between the same first runs).

    Examples
    --------
    >>> one, other = np.array([0, 1, 0, 2]), np.array([0, 1, 1, 2, 0])
    >>> merged_runs([one, other], 3).tolist()
    [0, 1, 0, 1, 2, 0]
    """
    found = lines[0]
    for line in lines[1:]:
        found = _merged(found, line, num_ops)
    return found


@kernel
def runs_of(merged: Ints, line: Ints, num_ops: int) -> Bools:
    """Which of the runs of `merged` make up `line`, one of the schedules; ``(runs,)``."""
    used = np.zeros(merged.size, np.bool_)
    seen, ran = np.zeros(num_ops, np.bool_), np.zeros(num_ops, np.bool_)
    at = 0
    for i in range(merged.size):
        op = merged[i]
        if at < line.size and line[at] == op and seen[op] == ran[op]:
            used[i] = True
            ran[op] = True
            at += 1
        seen[op] = True
    return used


@kernel
def _merged(one: Ints, other: Ints, num_ops: int) -> Ints:
    found = np.empty(one.size + other.size, np.int64)
    seen = np.zeros(num_ops, np.bool_)
    i, j, count = 0, 0, 0
    while i < one.size or j < other.size:
        one_end, other_end = i, j
        while one_end < one.size and seen[one[one_end]]:
            one_end += 1
        while other_end < other.size and seen[other[other_end]]:
            other_end += 1
        count = _supersequence(one[i:one_end], other[j:other_end], found, count)
        i, j = one_end, other_end
        if i < one.size:
            found[count] = one[i]
            seen[one[i]] = True
            i, j, count = i + 1, j + 1, count + 1
    return found[:count].copy()


@kernel
def _supersequence(one: Ints, other: Ints, found: Ints, count: int) -> int:
    """Write a shortest common supersequence into `found` from `count` on; where it ends."""
    i, j = 0, 0
    if one.size * other.size > _MOST_PAIRS:
        # Not by slices: numba would compile the words of an error about their shapes.
        for i in range(one.size):
            found[count + i] = one[i]
        count += one.size
        for j in range(other.size):
            found[count + j] = other[j]
        return count + other.size
    common = np.zeros((one.size + 1, other.size + 1), np.int32)
    for i in range(one.size - 1, -1, -1):
        for j in range(other.size - 1, -1, -1):
            if one[i] == other[j]:
                common[i, j] = common[i + 1, j + 1] + 1
            else:
                common[i, j] = max(common[i + 1, j], common[i, j + 1])
    i, j = 0, 0
    while i < one.size or j < other.size:
        if i < one.size and j < other.size and one[i] == other[j]:
            found[count] = one[i]
            i, j = i + 1, j + 1
        elif j == other.size or (i < one.size and common[i + 1, j] >= common[i, j + 1]):
            found[count] = one[i]
            i += 1
        else:
            found[count] = other[j]
            j += 1
        count += 1
    return count
