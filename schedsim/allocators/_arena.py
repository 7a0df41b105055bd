"""The compiled arenas: one range of addresses that grows at its end, with free gaps in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.cached import njit


@njit(cache=True)
def run_arena(
    events: NDArray[np.int64], block_bytes: NDArray[np.int64], best: bool, capacity: int
) -> Any:
    """Play `events` as `run_caching` does; gaps are kept sorted by address.

    O(log g) to find neighbours among g gaps, O(g) to choose one.
    """
    num_events = events.size
    start = np.empty(num_events + 1, np.int64)
    length = np.empty(num_events + 1, np.int64)
    num_gaps = 0
    top = 0
    allocated = 0
    place = np.zeros(block_bytes.size, np.int64)
    series = np.zeros((4, num_events), np.int64)
    address = np.zeros(num_events, np.int64)
    reserved = 0
    for e in range(num_events):
        item = events[e]
        if item >= 0:
            size = block_bytes[item]
            chosen = -1
            for g in range(num_gaps):
                if length[g] >= size and (chosen < 0 or length[g] < length[chosen]):
                    chosen = g
                    if not best:
                        break
            if chosen >= 0:
                place[item] = start[chosen]
                start[chosen] += size
                length[chosen] -= size
                if length[chosen] == 0:
                    num_gaps -= 1
                    for g in range(chosen, num_gaps):
                        start[g], length[g] = start[g + 1], length[g + 1]
            else:
                # A gap never touches the end: the end moves back over it instead.
                if top + size > capacity:
                    return e, series, address, 0
                place[item] = top
                top += size
            allocated += size
            address[e] = place[item]
        else:
            size = block_bytes[~item]
            first = place[~item]
            address[e] = first
            allocated -= size
            low, high = 0, num_gaps
            while low < high:
                middle = (low + high) // 2
                if start[middle] < first:
                    low = middle + 1
                else:
                    high = middle
            joins_before = low > 0 and start[low - 1] + length[low - 1] == first
            joins_after = low < num_gaps and start[low] == first + size
            if joins_before and joins_after:
                length[low - 1] += size + length[low]
                num_gaps -= 1
                for g in range(low, num_gaps):
                    start[g], length[g] = start[g + 1], length[g + 1]
            elif joins_before:
                length[low - 1] += size
            elif joins_after:
                start[low] = first
                length[low] += size
            else:
                for g in range(num_gaps, low, -1):
                    start[g], length[g] = start[g - 1], length[g - 1]
                start[low], length[low] = first, size
                num_gaps += 1
            if num_gaps and start[num_gaps - 1] + length[num_gaps - 1] == top:
                num_gaps -= 1
                top = start[num_gaps]
        reserved = max(reserved, top)
        series[0, e] = reserved
        series[1, e] = allocated
        series[2, e] = reserved - top
        series[3, e] = 1
    return num_events, series, address, 0
