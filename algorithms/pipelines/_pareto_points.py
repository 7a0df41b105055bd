"""The points in three dimensions that no other point beats; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.kernels.cached import njit


@njit(cache=True)
def undominated(held: Any, need: Any) -> Any:
    """Mask of the points, given by ascending time, that no earlier one beats in both; O(n * front).

    The staircase of (held, need) over the points so far is kept by ascending `held` and descending
    `need`.
    """
    num = held.size
    keep = np.zeros(num, np.bool_)
    stair_held = np.empty(num, np.int64)
    stair_need = np.empty(num, np.int64)
    size = 0
    for p in range(num):
        # The last step of the staircase that holds no more than this point needs the least of
        # those.
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            if stair_held[middle] <= held[p]:
                low = middle + 1
            else:
                high = middle
        if low > 0 and stair_need[low - 1] <= need[p]:
            continue
        keep[p] = True
        at = low
        if at > 0 and stair_held[at - 1] == held[p]:
            at -= 1
        gone = at
        while gone < size and stair_need[gone] >= need[p]:
            gone += 1
        shift = 1 - (gone - at)
        if shift > 0:
            for q in range(size - 1, gone - 1, -1):
                stair_held[q + shift] = stair_held[q]
                stair_need[q + shift] = stair_need[q]
        elif shift < 0:
            for q in range(gone, size):
                stair_held[q + shift] = stair_held[q]
                stair_need[q + shift] = stair_need[q]
        size += shift
        stair_held[at] = held[p]
        stair_need[at] = need[p]
    return keep
