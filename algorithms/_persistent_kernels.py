"""Compiled kernels of the recurrence over persistent schedules; see `persistent` for its meaning.

All of them read one `Problem` unpacked into arrays, work on rows (classes of equal sub-chains, in
an order in which each row reads only earlier ones) and treat sizes as whole bytes. A row is a non-increasing step function: time as
a function of the memory left to the sub-chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Floats are compared, never NaN and never -0.0: with these two facts the minima vectorise.
_FAST = {"nnan", "nsz"}
INFINITE = np.inf

DONE, TOO_MANY_POINTS, TOO_MUCH_WORK = 0, 1, 2


@njit(cache=True)  # type: ignore[untyped-decorator]
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
    return row_of, row_stage[:rows].copy(), row_length[:rows].copy()


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _needs(
    i: int, k: int, x: Any, saved: Any, forward_ws: Any, backward_ws: Any, loss_ws: int
) -> Any:
    """Bytes needed by the saving forward of stage i (and the loss) and by its backward."""
    num = saved.size
    gradient = x[k] if k < num else 0
    forward = saved[i] + forward_ws[i] + gradient
    backward = saved[i] + x[i + 1] + (x[i] if i > 0 else 0) + backward_ws[i]
    if k == i + 1 and k == num:
        forward = max(forward, saved[i] + x[num] + loss_ws)
    return forward, backward


@njit(cache=True, inline="always")  # type: ignore[untyped-decorator]
def _to_units(need: int, unit: int, rest: int) -> int:
    """Least m with m * unit + rest >= need."""
    return max(0, -((rest - need) // unit))


@njit(cache=True)  # type: ignore[untyped-decorator]
def least_memory(
    x: Any,
    saved: Any,
    forward_ws: Any,
    backward_ws: Any,
    loss_ws: int,
    row_of: Any,
    row_stage: Any,
    row_length: Any,
) -> Any:
    """Least bytes in which each row can run at all; O(rows * L)."""
    num = saved.size
    least = np.empty(row_stage.size, np.int64)
    for row in range(row_stage.size):
        i, n = row_stage[row], row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        forward, backward = _needs(i, k, x, saved, forward_ws, backward_ws, loss_ws)
        best = max(forward, backward)
        if n > 1:
            best = max(best, saved[i] + least[row_of[i + 1, n - 1]])
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


@njit(cache=True, fastmath=_FAST)  # type: ignore[untyped-decorator]
def _improve_dense(best: Any, at: int, base: float, one: Any, other: Any) -> None:
    """best[at + q] = min(itself, base + one[q] + other[q]), the rows held at their last value."""
    # `best` falls with memory: from where it is as good as the sum at its very best, stop.
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


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def solve_dense(
    forward_s: Any,
    backward_s: Any,
    loss_s: float,
    x: Any,
    saved: Any,
    forward_ws: Any,
    backward_ws: Any,
    loss_ws: int,
    row_of: Any,
    row_stage: Any,
    row_length: Any,
    take_x: Any,
    take_saved: Any,
    unit: int,
    rest: int,
    num_slots: int,
) -> Any:
    """Times of all rows at 0..num_slots slots; O(rows * L * num_slots).

    Returns (first, start, count, values): row r is feasible from slot first[r], and its time at
    first[r] + q is values[start[r] + q], constant from its last entry on.
    """
    num = saved.size
    rows = row_stage.size
    first = np.full(rows, num_slots + 1, np.int64)
    start = np.zeros(rows, np.int64)
    count = np.zeros(rows, np.int64)
    values = np.empty(rows * (num_slots + 1), np.float64)  # pages are taken only when written
    best = np.empty(num_slots + 1, np.float64)
    filled = 0
    zero = np.zeros(1, np.float64)
    for row in range(rows):
        i, n = row_stage[row], row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        forward, backward = _needs(i, k, x, saved, forward_ws, backward_ws, loss_ws)
        low = _to_units(max(forward, backward), unit, rest)
        own = forward_s[i] + backward_s[i]
        best[:] = INFINITE
        if n == 1:
            if k == num:
                own += loss_s
            if low <= num_slots:
                best[low:] = own
        else:
            child = row_of[i + 1, n - 1]
            at = max(low, first[child] + take_saved[i])
            if first[child] <= num_slots and at <= num_slots:
                skip = at - first[child] - take_saved[i]
                end = start[child] + count[child]
                begin = min(start[child] + skip, end - 1)
                _improve_dense(best, at, own, values[begin:end], zero)
            peak = 0
            replay = 0.0
            for j in range(i + 1, k):
                stage = j - 1
                peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
                replay += forward_s[stage]
                at = _to_units(peak + gradient, unit, rest)
                if at > num_slots:
                    break
                right, left = row_of[j, k - j], row_of[i, j - i]
                at = max(at, first[right] + take_x[j], first[left])
                if at > num_slots:
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
        values[filled : filled + count[row]] = best[low : end + 1]
        filled += count[row]
    return first, start, count, values[:filled]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _grown(array: Any, size: int) -> Any:
    if array.size >= size:
        return array
    bigger = np.empty(max(size, 2 * array.size), array.dtype)
    bigger[: array.size] = array
    return bigger


@njit(cache=True)  # type: ignore[untyped-decorator]
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
) -> int:
    """Lower envelope of `old` and of base + one(m - shift) + other(m) for low <= m <= cap."""
    p = np.searchsorted(one_m, low - shift, side="right") - 1
    q = np.searchsorted(other_m, low, side="right") - 1
    a = np.searchsorted(old_m, low, side="right")
    new_m[:a] = old_m[:a]
    new_t[:a] = old_t[:a]
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


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def solve_exact(
    forward_s: Any,
    backward_s: Any,
    loss_s: float,
    x: Any,
    saved: Any,
    forward_ws: Any,
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
    num = saved.size
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
        forward, backward = _needs(i, k, x, saved, forward_ws, backward_ws, loss_ws)
        low = max(forward, backward)
        own = forward_s[i] + backward_s[i]
        size = 0
        if n == 1:
            if low <= cap:
                old_m[0] = low
                old_t[0] = own + loss_s if k == num else own
                size = 1
        else:
            child = row_of[i + 1, n - 1]
            begin, end = start[child], start[child] + count[child]
            if end > begin:
                at = max(low, memory[begin] + saved[i])
                if at <= cap:
                    new_m, new_t = _grown(new_m, end - begin + 2), _grown(new_t, end - begin + 2)
                    size = _merge_exact(
                        at,
                        cap,
                        own,
                        memory[begin:end],
                        values[begin:end],
                        saved[i],
                        zero_m,
                        zero_t,
                        old_m[:0],
                        old_t[:0],
                        new_m,
                        new_t,
                    )
                    old_m, new_m, old_t, new_t = new_m, old_m, new_t, old_t
            peak = 0
            replay = 0.0
            for j in range(i + 1, k):
                stage = j - 1
                peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
                replay += forward_s[stage]
                if peak + gradient > cap:
                    break
                right, left = row_of[j, k - j], row_of[i, j - i]
                if count[right] == 0 or count[left] == 0:
                    continue
                right_at, left_at = start[right], start[left]
                right_end, left_end = right_at + count[right], left_at + count[left]
                at = max(peak + gradient, memory[right_at] + x[j], memory[left_at])
                if at > cap:
                    continue
                least = replay + values[right_end - 1] + values[left_end - 1]
                below = np.searchsorted(old_m[:size], at, side="right")
                # At its very best, with all memory, the split may still lose everywhere.
                if below and old_t[below - 1] <= least:
                    continue
                room = size + count[right] + count[left] + 2
                work += room
                new_m, new_t = _grown(new_m, room), _grown(new_t, room)
                size = _merge_exact(
                    at,
                    cap,
                    replay,
                    memory[right_at:right_end],
                    values[right_at:right_end],
                    x[j],
                    memory[left_at:left_end],
                    values[left_at:left_end],
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
        memory, values = _grown(memory, filled + size), _grown(values, filled + size)
        start[row], count[row] = filled, size
        memory[filled : filled + size] = old_m[:size]
        values[filled : filled + size] = old_t[:size]
        filled += size
    return DONE, start, count, memory[:filled].copy(), values[:filled].copy()


@njit(cache=True)  # type: ignore[untyped-decorator]
def _time_at(row: int, m: int, dense: bool, first: Any, start: Any, count: Any, memory: Any, values: Any) -> float:
    """Time of `row` with memory m; infinite where it is infeasible."""
    if count[row] == 0 or m < 0:
        return INFINITE
    if dense:
        at = m - first[row]
    else:
        at = np.searchsorted(memory[start[row] : start[row] + count[row]], m, side="right") - 1
    if at < 0:
        return INFINITE
    return float(values[start[row] + min(at, count[row] - 1)])


@njit(cache=True)  # type: ignore[untyped-decorator]
def list_runs(
    forward_s: Any,
    backward_s: Any,
    x: Any,
    saved: Any,
    forward_ws: Any,
    backward_ws: Any,
    loss_ws: int,
    row_of: Any,
    take_x: Any,
    take_saved: Any,
    unit: int,
    rest: int,
    dense: bool,
    first: Any,
    start: Any,
    count: Any,
    memory: Any,
    values: Any,
    top: int,
) -> Any:
    """Op runs of the best schedule of the whole chain with memory `top`; empty if infeasible.

    Choices are found again by evaluating the recurrence, so that no table of them is stored.
    """
    num = saved.size
    runs = np.empty(4 * num + 16, np.int32)
    made = 0
    # Entries (i, k, m) are sub-chains to run; (op, -1, 0) is a single run.
    stack = np.empty((4 * num + 16, 3), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, num, top
    height = 1
    if _time_at(row_of[0, num], top, dense, first, start, count, memory, values) == INFINITE:
        return runs[:0]
    while height:
        height -= 1
        i, k, m = stack[height, 0], stack[height, 1], stack[height, 2]
        runs = _grown(runs, made + num + 4)
        if k < 0:
            runs[made] = i
            made += 1
            continue
        if k == i + 1:
            runs[made] = i
            made += 1
            if k == num:
                runs[made] = num
                made += 1
            runs[made] = 2 * num - i
            made += 1
            continue
        gradient = x[k] if k < num else 0
        forward, backward = _needs(i, k, x, saved, forward_ws, backward_ws, loss_ws)
        best, choice = INFINITE, -1
        if m >= _to_units(max(forward, backward), unit, rest):
            child, left_m = row_of[i + 1, k - i - 1], m - take_saved[i]
            inner = _time_at(child, left_m, dense, first, start, count, memory, values)
            if inner != INFINITE:
                best, choice = forward_s[i] + backward_s[i] + inner, i
        peak = 0
        replay = 0.0
        for j in range(i + 1, k):
            stage = j - 1
            peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
            replay += forward_s[stage]
            if m < _to_units(peak + gradient, unit, rest):
                break
            right = _time_at(
                row_of[j, k - j], m - take_x[j], dense, first, start, count, memory, values
            )
            left = _time_at(row_of[i, j - i], m, dense, first, start, count, memory, values)
            if replay + right + left < best:
                best, choice = replay + right + left, j
        if choice == i:
            runs[made] = i
            made += 1
            stack[height] = (2 * num - i, -1, 0)
            stack[height + 1] = (i + 1, k, m - take_saved[i])
        else:
            for stage in range(i, choice):
                runs[made] = stage
                made += 1
            stack[height] = (i, choice, m)
            stack[height + 1] = (choice, k, m - take_x[choice])
        height += 2
    return runs[:made].copy()
