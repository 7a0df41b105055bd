"""The recurrence over restart data and adjoint data, compiled; `adjoint_steps` derives it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.cached import njit

Table = NDArray[np.float64]
Sizes = NDArray[np.int64]


@njit(cache=True)
def row(num_steps: int, first: int, last: int) -> int:
    """The row of steps `first` to `last` (exclusive), in tables of all sub-chains."""
    return first * (2 * num_steps - first + 1) // 2 + last - first - 1


@njit(cache=True)
def fill_uniform(
    num_steps: int,
    slots: int,
    sizes: tuple[int, int],
    times: tuple[float, float, float, float],
    free: Table,
    kept: Table,
) -> None:
    """Fill both tables, one row for each length, for steps that are all alike; O(n^2 m)."""
    restart, adjoint = sizes
    forward, write, read, both = times
    disk = write < np.inf
    for length in range(1, num_steps + 1):
        for m in range(slots + 1):
            if length == 1:
                free[0, m] = forward
                if disk:
                    kept[0, m] = read + forward
                continue
            best = np.inf
            if adjoint <= m:
                best = forward + free[length - 2, m - adjoint]
            if disk:
                best = min(best, forward + both + free[length - 2, m])
            if restart <= m:
                for split in range(1, length):
                    later = free[length - split - 1, m - restart]
                    best = min(best, split * forward + later + free[split - 1, m])
            held = np.inf
            if disk:
                for split in range(1, length):
                    later = free[length - split - 1, m]
                    held = min(held, split * forward + later + kept[split - 1, m])
                best = min(best, write + held)
                kept[length - 1, m] = read + min(best, held)
            free[length - 1, m] = best


@njit(cache=True)
def fill_steps(
    slots: int,
    restart: Sizes,
    adjoint: Sizes,
    forward: Table,
    disk_s: Table,
    free: Table,
    kept: Table,
) -> None:
    """Fill both tables, one row for each sub-chain; O(n^3 m)."""
    write, read, both = disk_s[0], disk_s[1], disk_s[2]
    num_steps = restart.size
    start = np.zeros(num_steps + 1)
    for i in range(num_steps):
        start[i + 1] = start[i] + forward[i]
    disk = write[0] < np.inf
    held = np.empty(slots + 1)
    for length in range(1, num_steps + 1):
        for i in range(num_steps - length + 1):
            j = i + length
            best = free[row(num_steps, i, j)]
            if length == 1:
                best[:] = forward[i]
                if disk:
                    kept[row(num_steps, i, j)] = read[i] + forward[i]
                continue
            best[:] = np.inf
            after = free[row(num_steps, i + 1, j)]
            size = adjoint[i]
            for m in range(size, slots + 1):
                best[m] = forward[i] + after[m - size]
            if disk:
                for m in range(slots + 1):
                    best[m] = min(best[m], forward[i] + both[i] + after[m])
            size = restart[i]
            held[:] = np.inf
            for k in range(i + 1, j):
                gone = start[k] - start[i]
                later = free[row(num_steps, k, j)]
                earlier = free[row(num_steps, i, k)]
                for m in range(size, slots + 1):
                    best[m] = min(best[m], gone + later[m - size] + earlier[m])
                if disk:
                    again = kept[row(num_steps, i, k)]
                    for m in range(slots + 1):
                        held[m] = min(held[m], gone + later[m] + again[m])
            if disk:
                whole = kept[row(num_steps, i, j)]
                for m in range(slots + 1):
                    best[m] = min(best[m], write[i] + held[m])
                    whole[m] = read[i] + min(best[m], held[m])
