"""The recurrence of H-Revolve, compiled; `hrevolve` derives it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.cached import njit


class LevelArrays(NamedTuple):
    """Memory levels, one entry for each, and where the rows of each level stand in the tables."""

    num_slots: NDArray[np.int64]
    write_s: NDArray[np.float64]
    read_s: NDArray[np.float64]
    start: NDArray[np.int64]
    """Row ``start[k] + m`` belongs to level k with m free slots."""


@njit(cache=True)
def solve_levels(
    num_steps: int, forward_s: float, turn_s: float, levels: LevelArrays
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least times ``(free, kept)`` for 1..`num_steps` steps in every level and number of slots.

    `free`: the first state is the one that the computation is at, and is in no slot. `kept`: the
    first state is in one of the m slots of level k. O(n^2 sum of slots) time.
    """
    num_slots, write_s, read_s, start = levels
    num_levels = num_slots.size
    num_rows = start[num_levels - 1] + num_slots[num_levels - 1] + 1
    free = np.full((num_rows, num_steps + 1), np.inf)
    kept = np.full((num_rows, num_steps + 1), np.inf)
    for k in range(num_levels):
        write, read = write_s[k], read_s[k]
        for m in range(num_slots[k] + 1):
            row = start[k] + m
            below = start[k] - 1  # the last row of the level above, with all its slots
            free[row, 1] = turn_s
            if m > 0:
                kept[row, 1] = turn_s
            for n in range(2, num_steps + 1):
                least_free = np.inf if k == 0 else free[below, n]
                if m > 0:
                    least = least_free
                    for j in range(1, n):
                        time = j * forward_s + free[row - 1, n - j] + read + kept[row, j]
                        if time < least:
                            least = time
                    kept[row, n] = least
                    if write + least < least_free:
                        least_free = write + least
                free[row, n] = least_free
    return free, kept
