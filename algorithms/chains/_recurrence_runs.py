"""From solved rows back to the op runs of the best schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel, run
from schedsim.kernels.record import Table as IntTable

from ._recurrence import (
    INFINITE,
    KEEP,
    PackedChain,
    RunList,
    Table,
    largest_need,
    may_save,
    num_at_most,
    to_units,
)


def list_runs(
    line: PackedChain, table: Table, top: int, begin: int, end: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Op runs of the best schedule of stages begin..end-1 with memory `top`, and saved bundles.

    The second array holds the bundle that each stage saves. Both are empty where nothing fits.
    """
    num = line.x.size - 1
    size = 4 * num + 16
    while True:
        found = RunList(
            runs=np.empty(size, np.int32),
            bundle_of=np.zeros(num, np.int32),
            stack=np.empty((4 * num + 16, 3), np.int64),
        )
        steps = (end - begin) ** 2
        made = run(trace_runs, steps, line, table, found, top, begin, end)
        if made >= 0:
            return found.runs[:made].copy(), found.bundle_of
        size *= 4


@kernel
def _time_at(table: Table, row: int, m: int) -> float:
    """Time of `row` with memory m; infinite where it is infeasible."""
    count = table.count[row]
    if count == 0 or m < 0:
        return INFINITE
    at = m - table.first[row]
    if not table.dense:
        at = num_at_most(table.memory, table.start[row], count, m) - 1
    if at < 0:
        return INFINITE
    return float(table.values[table.start[row] + min(at, count - 1)])


@kernel
def _put(stack: IntTable, at: int, i: int, k: int, m: int) -> None:
    stack[at, 0] = i
    stack[at, 1] = k
    stack[at, 2] = m


@kernel
def trace_runs(
    line: PackedChain, table: Table, found: RunList, top: int, begin: int, end: int
) -> int:
    """Fill `found`; the number of runs, or -1 where there is no room for them.

    Choices are found again by evaluating the recurrence, so that no table of choices is stored.
    """
    x, bundles, own_s, row_of = line.x, line.bundles, line.own_s, line.row_of
    unit, rest = table.unit_bytes, table.rest_bytes
    runs, bundle_of, stack = found.runs, found.bundle_of, found.stack
    num = x.size - 1
    made = 0
    _put(stack, 0, begin, end, top)
    height = 1
    if _time_at(table, row_of[begin, end - begin], top) == INFINITE:
        return 0
    while height:
        height -= 1
        i, k, m = stack[height, 0], stack[height, 1], stack[height, 2]
        if made + num + 4 > runs.size:
            return -1
        if k < 0:
            runs[made] = i
            made += 1
            continue
        if k == i + 1:
            best = INFINITE
            for bundle in range(bundles[i], bundles[i + 1]):
                need = to_units(largest_need(line, i, k, bundle), unit, rest)
                if own_s[bundle] < best and m >= need:
                    best, bundle_of[i] = own_s[bundle], bundle - bundles[i]
            runs[made] = i
            made += 1
            if k == num:
                runs[made] = num
                made += 1
            runs[made] = 2 * num - i
            made += 1
            continue
        gradient = x[k] if k < num else 0
        best, choice, chosen = INFINITE, -1, 0
        for bundle in range(bundles[i], bundles[i + 1]):
            if not may_save(line, i, k):
                break
            if m >= to_units(largest_need(line, i, k, bundle), unit, rest):
                child, left_m = row_of[i + 1, k - i - 1], m - table.take_saved[bundle]
                inner = _time_at(table, child, left_m)
                if own_s[bundle] + inner < best:
                    best, choice, chosen = own_s[bundle] + inner, i, bundle
        peak = 0
        replay = 0.0
        for j in range(i + 1, k):
            stage = j - 1
            peak = max(peak, (x[stage] if stage > i else 0) + x[j] + line.forward_ws[stage])
            replay += line.forward_s[stage]
            if m < to_units(peak + gradient, unit, rest) or line.rule[stage] == KEEP:
                break
            right = _time_at(table, row_of[j, k - j], m - table.take_x[j])
            left = _time_at(table, row_of[i, j - i], m)
            if replay + right + left < best:
                best, choice = replay + right + left, j
        if choice == i:
            runs[made] = i
            made += 1
            _put(stack, height, 2 * num - i, -1, 0)
            _put(stack, height + 1, i + 1, k, m - table.take_saved[chosen])
            bundle_of[i] = chosen - bundles[i]
        else:
            for stage in range(i, choice):
                runs[made] = stage
                made += 1
            _put(stack, height, i, choice, m)
            _put(stack, height + 1, choice, k, m - table.take_x[choice])
        height += 2
    return made
