"""From solved rows back to the op runs of the best schedule."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim.kernels.cached import njit

from ._recurrence import INFINITE, needs, num_at_most, to_units
from ._recurrence_exact import grown


@njit(cache=True)
def _time_at(
    row: int, m: int, dense: bool, first: Any, start: Any, count: Any, memory: Any, values: Any
) -> float:
    """Time of `row` with memory m; infinite where it is infeasible."""
    if count[row] == 0 or m < 0:
        return INFINITE
    at = m - first[row]
    if not dense:
        at = num_at_most(memory[start[row] : start[row] + count[row]], m) - 1
    if at < 0:
        return INFINITE
    return float(values[start[row] + min(at, count[row] - 1)])


@njit(cache=True)
def _put(stack: Any, at: int, i: int, k: int, m: int) -> None:
    """One entry of the stack; element by element, as rows take a second to compile."""
    stack[at, 0] = i
    stack[at, 1] = k
    stack[at, 2] = m


@njit(cache=True)
def list_runs(
    forward_s: Any,
    own_s: Any,
    x: Any,
    ways: Any,
    saved: Any,
    forward_ws: Any,
    saving_ws: Any,
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
    begin: int,
    end: int,
) -> Any:
    """Op runs of the best schedule of stages begin..end-1 with memory `top`; empty if infeasible.

    Beside them the way in which each stage saves its bundle.

    Choices are found again by evaluating the recurrence, so that no table of them is stored.
    """
    num = x.size - 1
    runs = np.empty(4 * num + 16, np.int32)
    way_of = np.zeros(num, np.int32)
    made = 0
    # Entries (i, k, m) are sub-chains to run; (op, -1, 0) is a single run.
    stack = np.empty((4 * num + 16, 3), np.int64)
    _put(stack, 0, begin, end, top)
    height = 1
    whole = row_of[begin, end - begin]
    if _time_at(whole, top, dense, first, start, count, memory, values) == INFINITE:
        return runs[:0], way_of
    while height:
        height -= 1
        i, k, m = stack[height, 0], stack[height, 1], stack[height, 2]
        runs = grown(runs, made + num + 4)
        if k < 0:
            runs[made] = i
            made += 1
            continue
        if k == i + 1:
            best = INFINITE
            for way in range(ways[i], ways[i + 1]):
                forward, backward = needs(i, k, way, x, saved, saving_ws, backward_ws, loss_ws)
                if own_s[way] < best and m >= to_units(max(forward, backward), unit, rest):
                    best, way_of[i] = own_s[way], way - ways[i]
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
        for way in range(ways[i], ways[i + 1]):
            forward, backward = needs(i, k, way, x, saved, saving_ws, backward_ws, loss_ws)
            if m >= to_units(max(forward, backward), unit, rest):
                child, left_m = row_of[i + 1, k - i - 1], m - take_saved[way]
                inner = _time_at(child, left_m, dense, first, start, count, memory, values)
                if own_s[way] + inner < best:
                    best, choice, chosen = own_s[way] + inner, i, way
        peak = 0
        replay = 0.0
        for j in range(i + 1, k):
            stage = j - 1
            peak = max(peak, (x[stage] if stage > i else 0) + x[j] + forward_ws[stage])
            replay += forward_s[stage]
            if m < to_units(peak + gradient, unit, rest):
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
            _put(stack, height, 2 * num - i, -1, 0)
            _put(stack, height + 1, i + 1, k, m - take_saved[chosen])
            way_of[i] = chosen - ways[i]
        else:
            for stage in range(i, choice):
                runs[made] = stage
                made += 1
            _put(stack, height, i, choice, m)
            _put(stack, height + 1, choice, k, m - take_x[choice])
        height += 2
    return runs[:made], way_of
