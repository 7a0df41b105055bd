"""Compiled parts of the recurrence over persistent schedules; `persistent` states the recurrence.

The kernels work on rows: classes of equal sub-chains, in an order in which each row reads only
rows before it. All sizes are whole bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel, run
from schedsim.kernels.record import Ints, Reals, RealTable, Record, ShortInts, ShortTable
from schedsim.kernels.record import Table as IntTable

INFINITE = np.inf

FORWARD, BACKWARD = range(2)
"""The halves of a stage whose bundle is saved."""

FREE, KEEP, RECOMPUTE = range(3)
"""Rules for a stage: none; run its forward only once; keep no bundle of it before the loss."""

Shorts = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PackedChain(Record):
    """A chain as arrays over its stages, over the bundles of its stages, and over rows.

    Attributes
    ----------
    forward_s, forward_ws : (L,)
    x : (L + 1,)
        Bytes of the chain's input and of each stage's output.
    bundles : (L + 1,)
        The bundles of stage i, its own first, are ``bundles[i] .. bundles[i + 1] - 1``.
    own_s, saved, saving_ws, backward_ws : (num_bundles,)
        Time of a forward and its backward, bytes of the bundle, workspaces.
    row_of : (L, L + 1)
        The row of a sub-chain in the tables, by its first stage and its length.
    row_stage, row_length : (num_rows,)
    rule : (L,)
        `FREE`, `KEEP` or `RECOMPUTE`.
    """

    forward_s: Reals
    own_s: Reals
    loss_s: float
    x: Ints
    bundles: Ints
    saved: Ints
    forward_ws: Ints
    saving_ws: Ints
    backward_ws: Ints
    loss_ws: int
    row_of: ShortTable
    row_stage: ShortInts
    row_length: ShortInts
    rule: ShortInts


@dataclass(frozen=True, eq=False)
class Table(Record):
    """Solved rows: times against memory.

    A dense row r is feasible from slot ``first[r]`` of `unit_bytes` on, and its time at
    ``first[r] + q`` is ``values[start[r] + q]``, constant from its last entry on. A row of break
    points has `count` of them from `start` on, with ascending `memory` and descending `values`.
    """

    dense: bool
    unit_bytes: int
    rest_bytes: int
    take_x: Ints
    take_saved: Ints
    first: Ints
    start: Ints
    count: Ints
    memory: Ints
    values: Reals


@dataclass(frozen=True, eq=False)
class Room(Record):
    """Room for two envelopes, the current one and the next one made from it, and counters.

    Attributes
    ----------
    memory, values : (2, room)
    state : (5,) int64
        Which of the two envelopes is current; rows done; points filled; work done; limit passed.
    cap, max_points, max_work : int
    """

    memory: IntTable
    values: RealTable
    state: Ints
    cap: int
    max_points: int
    max_work: int


@dataclass(frozen=True, eq=False)
class RunList(Record):
    """The runs of a schedule, the bundle that each stage saves, and a stack.

    Attributes
    ----------
    runs : (any,) int32
    bundle_of : (L,) int32
    stack : (any, 3) int64
        Entries (i, k, m) are sub-chains to run; (op, -1, 0) is a single run.
    """

    runs: ShortInts
    bundle_of: ShortInts
    stack: IntTable


def find_classes(
    stage_kind: NDArray[np.int64], input_key: NDArray[np.int64]
) -> tuple[Shorts, Shorts, Shorts]:
    """Rows for the distinct sub-chains of a chain of L stages; O(L^2).

    Two sub-chains are equal when their stages and their input sizes are, and neither ends at the
    loss. Returns `row_of` (L, L + 1) by first stage and length, and each row's stage and length.
    """
    num = stage_kind.size
    common = np.zeros((num + 1, num + 1), np.int32)
    row_of = np.full((num, num + 1), -1, np.int32)
    rows = np.empty((2, num * (num + 1) // 2), np.int32)
    count = run(_number_classes, num * num, stage_kind, input_key, common, row_of, rows)
    return row_of, rows[0, :count].copy(), rows[1, :count].copy()


@kernel
def _number_classes(
    stage_kind: Ints, input_key: Ints, common: ShortTable, row_of: ShortTable, rows: ShortTable
) -> int:
    """Fill `row_of` and `rows`, stages and lengths; returns the number of rows.

    `common` is working space, zero at first.
    """
    num = stage_kind.size
    for i in range(num - 1, -1, -1):
        for j in range(num - 1, i, -1):
            if stage_kind[i] == stage_kind[j]:
                common[i, j] = common[i + 1, j + 1] + 1
    made = 0
    # From the end of the chain: a row then reads rows of its own stage, which are still in the
    # processor's cache, and earlier rows.
    for i in range(num - 1, -1, -1):
        covered = 0
        for j in range(num - 1, i, -1):
            if input_key[i] != input_key[j]:
                continue
            length = min(int(common[i, j]), num - j - 1)
            for n in range(covered + 1, length + 1):
                row_of[i, n] = row_of[j, n]
            covered = max(covered, length)
        for n in range(covered + 1, num - i + 1):
            row_of[i, n] = made
            rows[0, made], rows[1, made] = i, n
            made += 1
    return made


@kernel
def needs(line: PackedChain, i: int, k: int, bundle: int, half: int) -> int:
    """Bytes that one half of stage i needs: the forward that saves `bundle`, or the backward.

    Stage i is the first stage of a sub-chain that ends before stage k; the forward of the last
    stage includes the loss. Bundles are numbered through all stages.
    """
    x, num = line.x, line.x.size - 1
    saved = line.saved[bundle]
    if half == BACKWARD:
        return int(saved + x[i + 1] + (x[i] if i > 0 else 0) + line.backward_ws[bundle])
    forward = saved + line.saving_ws[bundle] + (x[k] if k < num else 0)
    if k == i + 1 and k == num:
        forward = max(forward, saved + x[num] + line.loss_ws)
    return int(forward)


@kernel
def may_save(line: PackedChain, i: int, k: int) -> bool:
    """Whether stage i may save its bundle in a sub-chain that ends before stage k."""
    return bool(line.rule[i] != RECOMPUTE or k < line.x.size - 1)


@kernel
def largest_need(line: PackedChain, i: int, k: int, bundle: int) -> int:
    """The larger of what the forward and the backward need."""
    return max(needs(line, i, k, bundle, FORWARD), needs(line, i, k, bundle, BACKWARD))


@kernel
def to_units(need: int, unit: int, rest: int) -> int:
    """Least m with m * unit + rest >= need."""
    return max(0, -((rest - need) // unit))


@kernel
def num_at_most(ascending: Ints, begin: int, count: int, limit: int) -> int:
    """How many of the `count` entries from `begin` on are at most `limit`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if ascending[begin + middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def least_memory(line: PackedChain, least: Ints) -> None:
    """Fill in the least bytes in which each row can run at all; O(rows * L)."""
    x, row_of = line.x, line.row_of
    num = x.size - 1
    for row in range(line.row_stage.size):
        i, n = line.row_stage[row], line.row_length[row]
        k = i + n
        gradient = x[k] if k < num else 0
        best = 1 << 62
        for bundle in range(line.bundles[i], line.bundles[i + 1]):
            if not may_save(line, i, k):
                break
            need = largest_need(line, i, k, bundle)
            if n > 1:
                need = max(need, line.saved[bundle] + least[row_of[i + 1, n - 1]])
            best = min(best, need)
        peak = 0
        for j in range(i + 1, k):
            stage = j - 1
            peak = max(peak, (x[stage] if stage > i else 0) + x[j] + line.forward_ws[stage])
            if peak + gradient >= best or line.rule[stage] == KEEP:
                break
            right = x[j] + least[row_of[j, k - j]]
            best = min(best, max(peak + gradient, right, least[row_of[i, j - i]]))
        least[row] = best
