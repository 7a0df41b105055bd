"""The recurrence on true bytes: a row is a non-increasing step function of memory.

A row is kept as its break points, memory ascending and times descending.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import at_hand, in_python, kernel

from ._recurrence import (
    INFINITE,
    KEEP,
    PackedChain,
    Room,
    Table,
    largest_need,
    may_save,
    num_at_most,
)

DONE, TOO_MANY_POINTS, TOO_MUCH_WORK, SMALL_ROOM, SMALL_TABLE = range(5)

PLAIN_WORK = 20_000
"""Points that Python merges before the kernel is compiled."""

# Entries of `Room.state`.
THERE, ROWS, FILLED, WORK, CODE = range(5)


def solve_exact(line: PackedChain, cap: int, max_points: int, max_work: int) -> tuple[int, Table]:
    """Break points of all rows up to `cap` bytes, on true bytes, and the limit that was passed.

    Work is counted in points merged.
    """
    rows = line.row_stage.size
    # One additional row, which takes no memory and no time, stands in for a part that is absent.
    size = 4 * rows + 64
    table = Table(
        dense=False,
        unit_bytes=1,
        rest_bytes=0,
        take_x=line.x,
        take_saved=line.saved,
        first=np.zeros(rows, np.int64),
        start=np.zeros(rows + 1, np.int64),
        count=np.zeros(rows + 1, np.int64),
        memory=np.zeros(size, np.int64),
        values=np.zeros(size),
    )
    table.count[rows] = 1
    room = Room(
        memory=np.zeros((2, 256), np.int64),
        values=np.zeros((2, 256)),
        state=np.array([0, 0, 1, 0, DONE], np.int64),
        cap=cap,
        max_points=max_points + 1,
        max_work=max_work,
    )
    solve = solve_rows
    if not at_hand(solve_rows):
        # First in Python: work that takes no longer than compiling is then finished already.
        solve, room = in_python(solve_rows), replace(room, max_work=min(max_work, PLAIN_WORK))
    while True:
        solve(line, table, room)
        code = room.state[CODE]
        if code == TOO_MUCH_WORK and room.max_work < max_work:
            solve, room = solve_rows, replace(room, max_work=max_work)
        elif code == SMALL_ROOM:
            shape = (2, 2 * room.memory.shape[1])
            memory, values = np.zeros(shape, np.int64), np.zeros(shape)
            room = replace(room, memory=memory, values=values)
        elif code == SMALL_TABLE:
            size = 2 * table.memory.size + room.memory.shape[1]
            table = replace(
                table, memory=_grown(table.memory, size), values=_grown(table.values, size)
            )
        else:
            break
    filled = int(room.state[FILLED])
    return int(room.state[CODE]), replace(
        table, memory=table.memory[:filled], values=table.values[:filled]
    )


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.zeros(size, array.dtype)
    bigger[: array.size] = array
    return bigger


@kernel
def _merge(
    table: Table, room: Room, low: int, base: float, right: int, shift: int, left: int, size: int
) -> int:
    """Lower envelope of the current one and of base + right(m - shift) + left(m), low <= m <= cap.

    `right` and `left` are rows. Returns the number of points of the new envelope, which then is
    the current one.
    """
    memory, values, cap = table.memory, table.values, room.cap
    old, new = room.state[THERE], 1 - room.state[THERE]
    ms, ts = room.memory, room.values
    right_at, right_end = table.start[right], table.start[right] + table.count[right]
    left_at, left_end = table.start[left], table.start[left] + table.count[left]
    p = right_at + num_at_most(memory, right_at, table.count[right], low - shift) - 1
    q = left_at + num_at_most(memory, left_at, table.count[left], low) - 1
    a = 0
    made = 0
    last = INFINITE
    while a < size and ms[old, a] <= low:
        ms[new, a], ts[new, a] = ms[old, a], ts[old, a]
        last = ts[old, a]
        a += 1
    made = a
    least = base + values[right_end - 1] + values[left_end - 1]
    m = low
    value = base + values[p] + values[q]
    while True:
        if value < last:
            if made and ms[new, made - 1] == m:
                made -= 1
            ms[new, made], ts[new, made] = m, value
            made += 1
            last = value
        if last <= least:
            break
        m = cap + 1
        if p + 1 < right_end:
            m = min(m, memory[p + 1] + shift)
        if q + 1 < left_end:
            m = min(m, memory[q + 1])
        if m > cap:
            break
        # Points of the old envelope on the way.
        while a < size and ms[old, a] <= m:
            if ts[old, a] < last:
                ms[new, made], ts[new, made] = ms[old, a], ts[old, a]
                last = ts[old, a]
                made += 1
            a += 1
        if p + 1 < right_end and memory[p + 1] + shift == m:
            p += 1
        if q + 1 < left_end and memory[q + 1] == m:
            q += 1
        value = base + values[p] + values[q]
    while a < size:
        if ts[old, a] < last:
            ms[new, made], ts[new, made] = ms[old, a], ts[old, a]
            last = ts[old, a]
            made += 1
        a += 1
    room.state[THERE] = new
    return int(made)


@kernel
def solve_rows(line: PackedChain, table: Table, room: Room) -> None:
    """Solve the rows that are left, or as many as there is room for; `Room.state` says how many.

    A row for which there is no room is begun again by the next call.
    """
    x, row_of, memory, values = line.x, line.row_of, table.memory, table.values
    start, count, state, cap = table.start, table.count, room.state, room.cap
    num, rows = x.size - 1, line.row_stage.size
    nothing, work = rows, state[WORK]
    for row in range(state[ROWS], rows):
        i, n = line.row_stage[row], line.row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        size = 0
        peak = 0
        replay = 0.0
        # First come the bundles that stage i may keep, then the checkpoints after it.
        kept = line.bundles[i + 1] - line.bundles[i]
        for c in range(kept + n - 1):
            right, left = nothing, nothing
            if c < kept:
                if not may_save(line, i, k):
                    continue
                bundle = line.bundles[i] + c
                at = largest_need(line, i, k, bundle)
                base, shift = line.own_s[bundle], line.saved[bundle]
                if n == 1:
                    shift = 0
                    base += line.loss_s if k == num else 0.0
                else:
                    right = int(row_of[i + 1, n - 1])
            else:
                j = i + 1 + c - kept
                stage = j - 1
                peak = max(peak, (x[stage] if stage > i else 0) + x[j] + line.forward_ws[stage])
                replay += line.forward_s[stage]
                if peak + gradient > cap or line.rule[stage] == KEEP:
                    break
                right, shift = int(row_of[j, k - j]), x[j]
                at, base = peak + gradient, replay
                left = int(row_of[i, j - i])
            if count[right] == 0 or count[left] == 0:
                continue
            at = max(at, memory[start[right]] + shift, memory[start[left]])
            if at > cap:
                continue
            # At its very best, with all memory, this bundle may still lose everywhere.
            best = base + values[start[right] + count[right] - 1]
            best += values[start[left] + count[left] - 1]
            below = 0
            if size:
                ms = room.memory[state[THERE]]
                below = num_at_most(ms, 0, size, at)
            if below and room.values[state[THERE], below - 1] <= best:
                continue
            most = size + count[right] + count[left] + 2
            if most > room.memory.shape[1]:
                state[CODE] = SMALL_ROOM
                return
            work += most
            size = _merge(table, room, at, base, right, shift, left, size)
        filled = state[FILLED]
        if filled + size > room.max_points:
            state[CODE] = TOO_MANY_POINTS
            return
        if work > room.max_work:
            state[CODE] = TOO_MUCH_WORK
            return
        if filled + size > memory.size:
            state[CODE] = SMALL_TABLE
            return
        start[row], count[row] = filled, size
        for q in range(size):
            memory[filled + q] = room.memory[state[THERE], q]
            values[filled + q] = room.values[state[THERE], q]
        state[FILLED], state[ROWS], state[WORK] = filled + size, row + 1, work
    state[CODE] = DONE
