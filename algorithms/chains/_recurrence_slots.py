"""The recurrence over memory slots: a row is an array of times, one per number of slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schedsim.kernels.compiled import kernel, kernel_with
from schedsim.kernels.record import Reals

from ._recurrence import INFINITE, KEEP, PackedChain, Table, largest_need, may_save, to_units

# Times that are compared are never NaN and never -0.0: told so, the compiler vectorises minima.
_FAST = {"nnan", "nsz"}


@kernel_with(fastmath=_FAST)
def _improve_dense(best: Reals, at: int, base: float, one: Reals, other: Reals) -> None:
    """best[at + q] = min(itself, base + one[q] + other[q]), the rows held at their last value."""
    # `best` falls with memory: where it is as good as the sum at the sum's very best, stop.
    least = base + one[-1] + other[-1]
    low, high = at, best.size
    while low < high:
        middle = (low + high) // 2
        if best[middle] > least:
            low = middle + 1
        else:
            high = middle
    size = low - at
    if size == 0:
        return
    both = min(one.size, other.size, size)
    target = best[at : at + both]
    first, second = one[:both], other[:both]
    for q in range(both):
        value = base + first[q] + second[q]
        target[q] = min(target[q], value)
    longer, fixed = (one, other[-1]) if one.size > other.size else (other, one[-1])
    until = min(longer.size, size)
    base += fixed
    if until > both:
        tail, rest = best[at + both : at + until], longer[both:until]
        for q in range(until - both):
            value = base + rest[q]
            tail[q] = min(tail[q], value)
    final = base + longer[-1]
    flat = best[at + until : at + size]
    for q in range(flat.size):
        flat[q] = min(flat[q], final)


def solve_dense(line: PackedChain, table: Table, num_slots: int) -> Table:
    """Times of all rows at 0..num_slots slots, written into `table`; O(rows * L * num_slots)."""
    rows = line.row_stage.size
    values = np.empty(rows * (num_slots + 1))  # pages are taken only when written
    table = replace(
        table,
        first=np.full(rows, num_slots + 1, np.int64),
        start=np.zeros(rows, np.int64),
        count=np.zeros(rows, np.int64),
        values=values,
    )
    # Last times stand beside the rows, so that pruning reads none of the rows.
    filled = solve_slots(line, table, np.empty(num_slots + 1), np.empty(rows), np.zeros(1))
    return replace(table, values=values[:filled])


@kernel
def solve_slots(line: PackedChain, table: Table, best: Reals, last: Reals, zero: Reals) -> int:
    """Fill `table`; the number of its values. `best` is room for a row, `last` for last times."""
    x, row_of, num_slots = line.x, line.row_of, best.size - 1
    unit, rest, take_x, take_saved = (
        table.unit_bytes,
        table.rest_bytes,
        table.take_x,
        table.take_saved,
    )
    first, start, count, values = table.first, table.start, table.count, table.values
    num = x.size - 1
    rows = line.row_stage.size
    filled = 0
    for row in range(rows):
        i, n = line.row_stage[row], line.row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        for q in range(num_slots + 1):
            best[q] = INFINITE
        for bundle in range(line.bundles[i], line.bundles[i + 1]):
            if not may_save(line, i, k):
                break
            low = to_units(largest_need(line, i, k, bundle), unit, rest)
            if n == 1:
                own = line.own_s[bundle] + (line.loss_s if k == num else 0.0)
                for q in range(low, num_slots + 1):
                    best[q] = min(best[q], own)
                continue
            child = row_of[i + 1, n - 1]
            at = max(low, first[child] + take_saved[bundle])
            if first[child] <= num_slots and at <= num_slots:
                skip = at - first[child] - take_saved[bundle]
                end = start[child] + count[child]
                begin = min(start[child] + skip, end - 1)
                _improve_dense(best, at, line.own_s[bundle], values[begin:end], zero)
        if n > 1:
            peak = 0
            replay = 0.0
            for j in range(i + 1, k):
                stage = j - 1
                peak = max(peak, (x[stage] if stage > i else 0) + x[j] + line.forward_ws[stage])
                replay += line.forward_s[stage]
                at = to_units(peak + gradient, unit, rest)
                if at > num_slots or line.rule[stage] == KEEP:
                    break
                right, left = row_of[j, k - j], row_of[i, j - i]
                at = max(at, first[right] + take_x[j], first[left])
                if at > num_slots:
                    continue
                # At its very best, with all memory, the split may still lose everywhere.
                if replay + last[right] + last[left] >= best[at]:
                    continue
                right_end, left_end = start[right] + count[right], start[left] + count[left]
                right_at = min(start[right] + at - take_x[j] - first[right], right_end - 1)
                left_at = min(start[left] + at - first[left], left_end - 1)
                _improve_dense(
                    best, at, replay, values[right_at:right_end], values[left_at:left_end]
                )
        low = 0
        while low <= num_slots and best[low] == INFINITE:
            low += 1
        if low > num_slots:
            continue
        end = num_slots
        while end > low and best[end - 1] == best[end]:
            end -= 1
        first[row], start[row], count[row] = low, filled, end - low + 1
        last[row] = best[end]
        for q in range(low, end + 1):
            values[filled + q - low] = best[q]
        filled += count[row]
    return int(filled)
