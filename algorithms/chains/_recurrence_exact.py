"""The recurrence on true bytes: a row is a non-increasing step function of memory.

A row is kept as its break points, memory ascending and times descending.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.kernels.cached import njit

from ._recurrence import INFINITE, needs, num_at_most

DONE, TOO_MANY_POINTS, TOO_MUCH_WORK = 0, 1, 2


@njit(cache=True)
def copy_into(target: Any, at: int, source: Any, size: int) -> None:
    """target[at : at + size] = source[:size]; a loop, as slices take a second to compile."""
    for q in range(size):
        target[at + q] = source[q]


@njit(cache=True)
def grown(array: Any, size: int) -> Any:
    """`array`, or a copy of it with room for `size` entries at least."""
    if array.size >= size:
        return array
    bigger = np.empty(max(size, 2 * array.size), array.dtype)
    copy_into(bigger, 0, array, array.size)
    return bigger


@njit(cache=True)
def _merge_exact(
    low: int,
    cap: int,
    base: float,
    one_m: Any,
    one_t: Any,
    shift: int,
    other_m: Any,
    other_t: Any,
    old_m: Any,
    old_t: Any,
    new_m: Any,
    new_t: Any,
) -> Any:
    """Lower envelope of `old` and of base + one(m - shift) + other(m) for low <= m <= cap."""
    p = num_at_most(one_m, low - shift) - 1
    q = num_at_most(other_m, low) - 1
    a = num_at_most(old_m, low)
    copy_into(new_m, 0, old_m, a)
    copy_into(new_t, 0, old_t, a)
    size = a
    last = new_t[a - 1] if a else INFINITE
    least = base + one_t[-1] + other_t[-1]
    m = low
    value = base + one_t[p] + other_t[q]
    while True:
        if value < last:
            if size and new_m[size - 1] == m:
                size -= 1
            new_m[size], new_t[size] = m, value
            size += 1
            last = value
        if last <= least:
            break
        m = cap + 1
        if p + 1 < one_m.size:
            m = min(m, one_m[p + 1] + shift)
        if q + 1 < other_m.size:
            m = min(m, other_m[q + 1])
        if m > cap:
            break
        # Points of the old envelope on the way.
        while a < old_m.size and old_m[a] <= m:
            if old_t[a] < last:
                new_m[size], new_t[size] = old_m[a], old_t[a]
                last = old_t[a]
                size += 1
            a += 1
        if p + 1 < one_m.size and one_m[p + 1] + shift == m:
            p += 1
        if q + 1 < other_m.size and other_m[q + 1] == m:
            q += 1
        value = base + one_t[p] + other_t[q]
    while a < old_m.size:
        if old_t[a] < last:
            new_m[size], new_t[size] = old_m[a], old_t[a]
            last = old_t[a]
            size += 1
        a += 1
    return size


@njit(cache=True, nogil=True)
def solve_exact(
    forward_s: Any,
    own_s: Any,
    loss_s: float,
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
    cap: int,
    max_points: int,
    max_work: int,
) -> Any:
    """Break points of all rows up to `cap` bytes, on true bytes.

    Returns (code, start, count, memory, values); `code` says which limit was passed, if any.
    Work is counted in points merged.
    """
    num = x.size - 1
    rows = row_stage.size
    start = np.zeros(rows, np.int64)
    count = np.zeros(rows, np.int64)
    memory = np.empty(4 * rows + 64, np.int64)
    values = np.empty(4 * rows + 64, np.float64)
    filled = 0
    work = 0
    old_m, old_t = np.empty(64, np.int64), np.empty(64, np.float64)
    new_m, new_t = np.empty(64, np.int64), np.empty(64, np.float64)
    zero_m, zero_t = np.zeros(1, np.int64), np.zeros(1, np.float64)
    for row in range(rows):
        i, n = row_stage[row], row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        size = 0
        peak = 0
        replay = 0.0
        # First the ways in which stage i keeps its bundle, then the checkpoints after it.
        kept = ways[i + 1] - ways[i]
        for c in range(kept + n - 1):
            right_m, right_t = zero_m, zero_t
            left_m, left_t = zero_m, zero_t
            if c < kept:
                way = ways[i] + c
                forward, backward = needs(i, k, way, x, saved, saving_ws, backward_ws, loss_ws)
                at, base, shift = max(forward, backward), own_s[way], saved[way]
                if n == 1:
                    shift = 0
                    base += loss_s if k == num else 0.0
                    right = -1
                else:
                    right = row_of[i + 1, n - 1]
            else:
                j = i + 1 + c - kept
                stage = j - 1
                peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
                replay += forward_s[stage]
                if peak + gradient > cap:
                    break
                right, shift = row_of[j, k - j], x[j]
                at, base = peak + gradient, replay
                left = row_of[i, j - i]
                if count[left] == 0:
                    continue
                left_m = memory[start[left] : start[left] + count[left]]
                left_t = values[start[left] : start[left] + count[left]]
            if right >= 0:
                if count[right] == 0:
                    continue
                right_m = memory[start[right] : start[right] + count[right]]
                right_t = values[start[right] : start[right] + count[right]]
            at = max(at, right_m[0] + shift, left_m[0])
            if at > cap:
                continue
            # At its very best, with all memory, this way may still lose everywhere.
            below = num_at_most(old_m[:size], at)
            if below and old_t[below - 1] <= base + right_t[-1] + left_t[-1]:
                continue
            room = size + right_m.size + left_m.size + 2
            work += room
            new_m, new_t = grown(new_m, room), grown(new_t, room)
            size = _merge_exact(
                at,
                cap,
                base,
                right_m,
                right_t,
                shift,
                left_m,
                left_t,
                old_m[:size],
                old_t[:size],
                new_m,
                new_t,
            )
            old_m, new_m, old_t, new_t = new_m, old_m, new_t, old_t
        if filled + size > max_points:
            return TOO_MANY_POINTS, start, count, memory[:0], values[:0]
        if work > max_work:
            return TOO_MUCH_WORK, start, count, memory[:0], values[:0]
        memory, values = grown(memory, filled + size), grown(values, filled + size)
        start[row], count[row] = filled, size
        copy_into(memory, filled, old_m, size)
        copy_into(values, filled, old_t, size)
        filled += size
    return DONE, start, count, memory[:filled], values[:filled]
