"""Compiled parts of the recurrence over persistent schedules; `persistent` says what it means.

The kernels work on rows: classes of equal sub-chains, in an order in which each row reads only
earlier ones. All sizes are whole bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.kernels.cached import njit

INFINITE = np.inf


@njit(cache=True)
def find_classes(stage_kind: Any, input_key: Any) -> Any:
    """Rows for the distinct sub-chains of a chain of L stages; O(L^2).

    Two sub-chains are equal when their stages and their input sizes are, and neither ends at the
    loss. Returns `row_of` (L, L + 1) by first stage and length, and each row's stage and length.
    """
    num = stage_kind.size
    common = np.zeros((num + 1, num + 1), np.int32)
    for i in range(num - 1, -1, -1):
        for j in range(num - 1, i, -1):
            if stage_kind[i] == stage_kind[j]:
                common[i, j] = common[i + 1, j + 1] + 1
    row_of = np.full((num, num + 1), -1, np.int32)
    row_stage = np.empty(num * (num + 1) // 2, np.int32)
    row_length = np.empty(num * (num + 1) // 2, np.int32)
    rows = 0
    # From the end of the chain: a row then reads rows of its own stage, which are still in the
    # cache, and earlier ones.
    for i in range(num - 1, -1, -1):
        covered = 0
        for j in range(num - 1, i, -1):
            if input_key[i] != input_key[j]:
                continue
            length = min(common[i, j], num - j - 1)
            for n in range(covered + 1, length + 1):
                row_of[i, n] = row_of[j, n]
            covered = max(covered, length)
        for n in range(covered + 1, num - i + 1):
            row_of[i, n] = rows
            row_stage[rows], row_length[rows] = i, n
            rows += 1
    return row_of, row_stage[:rows], row_length[:rows]


@njit(cache=True, inline="always")
def needs(
    i: int, k: int, way: int, x: Any, saved: Any, saving_ws: Any, backward_ws: Any, loss_ws: int
) -> Any:
    """Bytes needed by the forward of stage i that saves by `way` (and the loss), and its backward.

    `saved`, `saving_ws` and `backward_ws` are by way; those of stage i are ``ways[i]..ways[i+1]``.
    """
    num = x.size - 1
    gradient = x[k] if k < num else 0
    forward = saved[way] + saving_ws[way] + gradient
    backward = saved[way] + x[i + 1] + (x[i] if i > 0 else 0) + backward_ws[way]
    if k == i + 1 and k == num:
        forward = max(forward, saved[way] + x[num] + loss_ws)
    return forward, backward


@njit(cache=True, inline="always")
def to_units(need: int, unit: int, rest: int) -> int:
    """Least m with m * unit + rest >= need."""
    return max(0, -((rest - need) // unit))


@njit(cache=True)
def num_at_most(ascending: Any, limit: int) -> int:
    """How many entries of `ascending` are at most `limit`; compiles faster than searchsorted."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def least_memory(
    x: Any,
    ways: Any,
    saved: Any,
    forward_ws: Any,
    saving_ws: Any,
    backward_ws: Any,
    loss_ws: int,
    row_of: Any,
    row_stage: Any,
    row_length: Any,
) -> Any:
    """Least bytes in which each row can run at all; O(rows * L)."""
    num = x.size - 1
    least = np.empty(row_stage.size, np.int64)
    for row in range(row_stage.size):
        i, n = row_stage[row], row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        best = np.int64(2**62)
        for way in range(ways[i], ways[i + 1]):
            forward, backward = needs(i, k, way, x, saved, saving_ws, backward_ws, loss_ws)
            need = max(forward, backward)
            if n > 1:
                need = max(need, saved[way] + least[row_of[i + 1, n - 1]])
            best = min(best, need)
        peak = 0
        for j in range(i + 1, k):
            stage = j - 1
            peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
            if peak + gradient >= best:
                break
            right = x[j] + least[row_of[j, k - j]]
            best = min(best, max(peak + gradient, right, least[row_of[i, j - i]]))
        least[row] = best
    return least
