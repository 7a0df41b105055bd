"""Orders of the ops of a graph that need less memory than the file's, found greedily."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._profile import PRODUCER, READERS, READS, REAL, SIZE, STEPS, WRITES, Steps


@kernel(STEPS, REAL)
def greedy_order(steps: Steps, patience: float) -> NDArray[np.int64]:
    """An order in which each next op is the ready one that leaves the fewest bytes alive.

    `patience` of 0 looks at what an op frees and makes only; larger values prefer ops that stand
    early in the file's order. Ties fall by that order. O(ops * ready ops + reads).
    """
    num_ops = steps.time_s.size - 2
    missing = np.zeros(num_ops, np.int64)  # inputs not there yet
    readers_left = np.zeros(steps.tensor.shape[0], np.int64)
    for tensor in range(steps.tensor.shape[0]):
        readers_left[tensor] = steps.tensor[tensor + 1, READERS] - steps.tensor[tensor, READERS]
    for op in range(num_ops):
        for r in range(steps.op[op, READS], steps.op[op + 1, READS]):
            if steps.tensor[steps.flat[r], PRODUCER] < num_ops:
                missing[op] += 1
    ready = np.empty(num_ops, np.int64)
    num_ready = 0
    for op in range(num_ops):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    mean = max(1.0, steps.tensor[:, SIZE].sum() / max(1, steps.tensor.shape[0]))
    order = np.empty(num_ops, np.int64)
    for position in range(num_ops):
        best, best_at = np.inf, 0
        for at in range(num_ready):
            op = ready[at]
            left = 0.0
            for w in range(steps.op[op, WRITES], steps.op[op + 1, WRITES]):
                tensor = steps.flat[w]
                if readers_left[tensor] > 0:
                    left += steps.tensor[tensor, SIZE]
            for r in range(steps.op[op, READS], steps.op[op + 1, READS]):
                tensor = steps.flat[r]
                if readers_left[tensor] == 1:
                    left -= steps.tensor[tensor, SIZE]
            left += patience * mean * (op - position)
            if left < best or (left == best and op < ready[best_at]):
                best, best_at = left, at
        op = ready[best_at]
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        order[position] = op
        for r in range(steps.op[op, READS], steps.op[op + 1, READS]):
            readers_left[steps.flat[r]] -= 1
        for w in range(steps.op[op, WRITES], steps.op[op + 1, WRITES]):
            tensor = steps.flat[w]
            for i in range(steps.tensor[tensor, READERS], steps.tensor[tensor + 1, READERS]):
                reader = steps.flat[i]
                if reader < num_ops:
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready[num_ready] = reader
                        num_ready += 1
    return order
