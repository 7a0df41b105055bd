"""Orders of the ops of a graph that need less memory than the file's, found greedily."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ._profile import Steps


@njit(cache=True, nogil=True)
def greedy_order(steps: Steps, patience: float) -> NDArray[np.int32]:
    """An order in which each next op is the ready one that leaves the fewest bytes alive.

    `patience` of 0 looks at what an op frees and makes only; larger values prefer ops that stand
    early in the file's order. Ties fall by that order. O(ops * ready ops + reads).
    """
    num_ops = steps.time_s.size - 2
    missing = np.zeros(num_ops, np.int64)  # inputs not there yet
    readers_left = np.zeros(steps.size.size, np.int64)
    for tensor in range(steps.size.size):
        readers_left[tensor] = steps.reader_start[tensor + 1] - steps.reader_start[tensor]
    for op in range(num_ops):
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            if steps.producer[steps.read_tensor[r]] < num_ops:
                missing[op] += 1
    ready = np.empty(num_ops, np.int64)
    num_ready = 0
    for op in range(num_ops):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    mean = max(1.0, steps.size.sum() / max(1, steps.size.size))
    order = np.empty(num_ops, np.int32)
    for position in range(num_ops):
        best, best_at = np.inf, 0
        for at in range(num_ready):
            op = ready[at]
            left = 0.0
            for w in range(steps.write_start[op], steps.write_start[op + 1]):
                tensor = steps.write_tensor[w]
                if readers_left[tensor] > 0:
                    left += steps.size[tensor]
            for r in range(steps.read_start[op], steps.read_start[op + 1]):
                tensor = steps.read_tensor[r]
                if readers_left[tensor] == 1:
                    left -= steps.size[tensor]
            left += patience * mean * (op - position)
            if left < best or (left == best and op < ready[best_at]):
                best, best_at = left, at
        op = ready[best_at]
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        order[position] = op
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            readers_left[steps.read_tensor[r]] -= 1
        for w in range(steps.write_start[op], steps.write_start[op + 1]):
            tensor = steps.write_tensor[w]
            for i in range(steps.reader_start[tensor], steps.reader_start[tensor + 1]):
                reader = steps.reader_op[i]
                if reader < num_ops:
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready[num_ready] = reader
                        num_ready += 1
    return order
