"""The recurrence over a line of blocks with several options each, on memory slots, compiled.

C(i, k, m) is the least time of the blocks i .. k-1, forward and backward, in m slots. The input of
block i, which stays to the end, and the results of the blocks from k on lie outside of the m slots;
the gradient that comes in from block k lies inside. Either block i runs once, by one of its
options, around the blocks after it; or blocks i .. j-1 run without keeping anything but the input
of block j, the rest follows from there, and then blocks i .. j-1 begin again:

    C(i, k, m) = min over o: t(o) + C(i + 1, k, m - kept(o))     if forward(o) + d(k) <= m
                                                                 and backward(o) + r(i + 1, k) <= m
                 min over j: p(i, j) + C(j, k, m - x(j)) + C(i, j, m - r(j, k))
                                                                 if peak(i, j) + d(k) <= m

with t the time of an option, p and peak those of the plain forwards, x the bytes of a block's
input, d those of the gradients at a border, r(j, k) those of the results of blocks j .. k-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from schedsim.dataflow.arrays import GraphArrays
from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints, Reals, RealTable, Record, ShortInts, ShortTable

INFINITE = np.inf

PLAIN, FORWARD, BACKWARD = 0, 1, 2
"""Steps of a schedule of blocks: a forward that keeps nothing, and the two halves of an option."""


@dataclass(frozen=True, eq=False)
class BlockRows(Record):
    """A line of blocks as the recurrence reads it; sizes in slots.

    Attributes
    ----------
    option_start : (L + 1,)
        Options of block i are ``option_start[i] .. option_start[i + 1] - 1``.
    option_s, kept, forward, backward : (num_options,)
    plain_s, plain : (L,)
        Time and peak of the forward that keeps nothing.
    x, d, results : (L + 1,)
        An entry for each border: input of the block after it, gradients across it, results of all
        blocks before it.
    row_of, row_block, row_length
        Rows for equal parts of the line, as `find_classes` numbers them.
    """

    option_start: Ints
    option_s: Reals
    kept: Ints
    forward: Ints
    backward: Ints
    plain_s: Reals
    plain: Ints
    x: Ints
    d: Ints
    results: Ints
    row_of: ShortTable
    row_block: ShortInts
    row_length: ShortInts


@kernel
def solve_rows(line: BlockRows, num_slots: int) -> Any:
    """C of each row at 0 .. num_slots slots, ``(num_rows, num_slots + 1)`` float64.

    O(rows * (L + options) * slots).
    """
    option_start, option_s, kept = line.option_start, line.option_s, line.kept
    forward, backward, plain_s, plain = line.forward, line.backward, line.plain_s, line.plain
    x, d, results, row_of = line.x, line.d, line.results, line.row_of
    row_block, row_length = line.row_block, line.row_length
    table = np.full((row_block.size, num_slots + 1), INFINITE)
    for row in range(row_block.size):
        i, n = row_block[row], row_length[row]
        k = i + n
        made = results[k] - results[i + 1]
        for o in range(option_start[i], option_start[i + 1]):
            low = max(forward[o] + d[k], backward[o] + made)
            if n == 1:
                for m in range(low, num_slots + 1):
                    table[row, m] = min(table[row, m], option_s[o])
            else:
                right = row_of[i + 1, n - 1]
                for m in range(max(low, kept[o]), num_slots + 1):
                    table[row, m] = min(table[row, m], option_s[o] + table[right, m - kept[o]])
        peak, time_s = 0, 0.0
        for j in range(i + 1, k):
            peak = max(peak, plain[j - 1] + (x[j - 1] if j - 1 > i else 0))
            time_s += plain_s[j - 1]
            low = peak + d[k]
            if low > num_slots:
                break
            right, left, after = row_of[j, k - j], row_of[i, j - i], results[k] - results[j]
            for m in range(max(low, max(x[j], after)), num_slots + 1):
                value = time_s + table[right, m - x[j]] + table[left, m - after]
                if value < table[row, m]:
                    table[row, m] = value
    return table


@kernel
def trace_rows(line: BlockRows, table: RealTable, slots: int) -> Any:
    """The steps that attain C(0, L, slots): (step, block, option), ``(num_steps, 3)`` int64.

    There are no steps where that is infinite. O(L) for each step.
    """
    option_start, option_s, kept = line.option_start, line.option_s, line.kept
    forward, backward, plain_s, plain = line.forward, line.backward, line.plain_s, line.plain
    x, d, results, row_of = line.x, line.d, line.results, line.row_of
    num = plain.size
    steps = np.empty((64, 3), np.int64)
    size = 0
    # The tasks left, the last first: (kind, first block, end or option, slots); 3 is a sub-line.
    todo = np.empty((4 * num + 8, 4), np.int64)
    height = 0
    if table[row_of[0, num], slots] < INFINITE:
        todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = 3, 0, num, slots
        height = 1
    while height:
        height -= 1
        what, i, k, m = todo[height, 0], todo[height, 1], todo[height, 2], todo[height, 3]
        if size + num + 2 > steps.shape[0]:
            more = np.empty((2 * steps.shape[0] + num + 2, 3), np.int64)
            for q in range(size):
                more[q, 0], more[q, 1], more[q, 2] = steps[q, 0], steps[q, 1], steps[q, 2]
            steps = more
        if what != 3:
            steps[size, 0], steps[size, 1], steps[size, 2] = what, i, k
            size += 1
            continue
        n = k - i
        best, option, split = INFINITE, -1, -1
        made = results[k] - results[i + 1]
        for o in range(option_start[i], option_start[i + 1]):
            if max(forward[o] + d[k], backward[o] + made) > m:
                continue
            value = option_s[o]
            if n > 1:
                if kept[o] > m:
                    continue
                value += table[row_of[i + 1, n - 1], m - kept[o]]
            if value < best:
                best, option = value, o
        peak, time_s = 0, 0.0
        for j in range(i + 1, k):
            peak = max(peak, plain[j - 1] + (x[j - 1] if j - 1 > i else 0))
            time_s += plain_s[j - 1]
            after = results[k] - results[j]
            if peak + d[k] > m or x[j] > m or after > m:
                continue
            value = time_s + table[row_of[j, k - j], m - x[j]] + table[row_of[i, j - i], m - after]
            if value < best:
                best, split = value, j
        if split < 0:
            steps[size, 0], steps[size, 1], steps[size, 2] = FORWARD, i, option
            size += 1
            todo[height, 0], todo[height, 1], todo[height, 2] = BACKWARD, i, option
            height += 1
            if n > 1:
                todo[height, 0], todo[height, 1] = 3, i + 1
                todo[height, 2], todo[height, 3] = k, m - kept[option]
                height += 1
        else:
            for block in range(i, split):
                steps[size, 0], steps[size, 1], steps[size, 2] = PLAIN, block, -1
                size += 1
            todo[height, 0], todo[height, 1] = 3, i
            todo[height, 2], todo[height, 3] = split, m - (results[k] - results[split])
            height += 1
            todo[height, 0], todo[height, 1] = 3, split
            todo[height, 2], todo[height, 3] = k, m - x[split]
            height += 1
    return steps[:size]


@kernel
def needed_runs(runs: Ints, graph: GraphArrays) -> Any:
    """Bool mask of the runs that are first ones of their op or write what a needed run reads."""
    op_once, num_tensors = graph.op_once, graph.tensor_bytes.size
    read_start, read_tensor = graph.read_start, graph.read_tensor
    write_start, write_tensor = graph.write_start, graph.write_tensor
    num_ops = op_once.size
    seen = np.zeros(num_ops, np.bool_)
    first = np.zeros(runs.size, np.bool_)
    for at in range(runs.size):
        if not seen[runs[at]]:
            seen[runs[at]] = True
            first[at] = True
    wanted = np.zeros(num_tensors, np.bool_)
    keep = np.zeros(runs.size, np.bool_)
    for at in range(runs.size - 1, -1, -1):
        op = runs[at]
        need = first[at]
        if not need and not op_once[op]:
            for w in range(write_start[op], write_start[op + 1]):
                need = need or wanted[write_tensor[w]]
        if need:
            keep[at] = True
            for w in range(write_start[op], write_start[op + 1]):
                wanted[write_tensor[w]] = False
            for r in range(read_start[op], read_start[op + 1]):
                wanted[read_tensor[r]] = True
    return keep
