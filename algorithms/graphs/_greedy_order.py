"""Orders of the ops of a graph that need less memory than the file's, found greedily."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._packed_graph import PACKED_GRAPH, PRODUCER, READERS, READS, SIZE, WRITES, PackedGraph
from ._profile_record import REAL

PATIENCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""How far greedy orders may stray from the file's order, farthest first."""


@kernel(PACKED_GRAPH, REAL)
def greedy_order(packed: PackedGraph, patience: float) -> NDArray[np.int64]:
    """An order in which the next op is always the ready op that leaves the fewest bytes alive.

    With `patience` 0 only the bytes that an op frees and writes count; larger values prefer ops
    that stand early in the file's order. That order breaks ties. O(ops * ready ops + reads).
    """
    num_ops = packed.time_s.size - 2
    num_tensors = packed.tensor.shape[0] - 1  # the last row says where the one before it ends
    missing = np.zeros(num_ops, np.int64)  # number of inputs not written yet
    readers_left = np.zeros(num_tensors, np.int64)
    for tensor in range(num_tensors):
        readers_left[tensor] = packed.tensor[tensor + 1, READERS] - packed.tensor[tensor, READERS]
    for op in range(num_ops):
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            if packed.tensor[packed.flat[r], PRODUCER] < num_ops:
                missing[op] += 1
    ready = np.empty(num_ops, np.int64)
    num_ready = 0
    for op in range(num_ops):
        if missing[op] == 0:
            ready[num_ready] = op
            num_ready += 1
    mean = max(1.0, packed.tensor[:, SIZE].sum() / max(1, packed.tensor.shape[0]))
    order = np.empty(num_ops, np.int64)
    for position in range(num_ops):
        best, best_at = np.inf, 0
        for at in range(num_ready):
            op = ready[at]
            left = 0.0
            for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
                tensor = packed.flat[w]
                if readers_left[tensor] > 0:
                    left += packed.tensor[tensor, SIZE]
            for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
                tensor = packed.flat[r]
                if readers_left[tensor] == 1:
                    left -= packed.tensor[tensor, SIZE]
            left += patience * mean * (op - position)
            if left < best or (left == best and op < ready[best_at]):
                best, best_at = left, at
        op = ready[best_at]
        num_ready -= 1
        ready[best_at] = ready[num_ready]
        order[position] = op
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            readers_left[packed.flat[r]] -= 1
        for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
            tensor = packed.flat[w]
            for i in range(packed.tensor[tensor, READERS], packed.tensor[tensor + 1, READERS]):
                reader = packed.flat[i]
                if reader < num_ops:
                    missing[reader] -= 1
                    if missing[reader] == 0:
                        ready[num_ready] = reader
                        num_ready += 1
    return order
