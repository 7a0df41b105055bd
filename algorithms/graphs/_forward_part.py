"""The forward part of a training step, and the schedule that follows from what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.arrays import GraphArrays
from schedsim.kernels.cached import njit


@dataclass(frozen=True)
class ForwardPart:
    """The ops before the first loss or backward op, in the graph's order.

    Attributes
    ----------
    arrays : GraphArrays
    num_ops : int
        Number of ops in the part: the ops with a smaller index than this.
    edges : (num_edges, 2) int64
        (producer, reader) pairs of ops inside the part, each once.
    op_bytes : (num_ops,) int64
        Bytes that each op writes.
    read_after : (num_tensors,) bool
        Whether an op after the part reads the tensor.
    must_keep : (num_tensors,) bool
        Whether the tensor is one of the part that cannot be written twice.
    """

    arrays: GraphArrays
    num_ops: int

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        arrays = self.arrays
        end = arrays.read_start[self.num_ops]
        reader = np.repeat(np.arange(self.num_ops), np.diff(arrays.read_start[: self.num_ops + 1]))
        producer = arrays.tensor_producer[arrays.read_tensor[:end]]
        pairs = np.stack([producer, reader], axis=1)[producer >= 0]
        return np.unique(pairs, axis=0) if pairs.size else pairs

    @cached_property
    def op_bytes(self) -> NDArray[np.int64]:
        arrays = self.arrays
        made = np.flatnonzero(self.made)
        sums = np.zeros(self.num_ops, dtype=np.int64)
        np.add.at(sums, arrays.tensor_producer[made], arrays.tensor_bytes[made])
        return sums

    @cached_property
    def made(self) -> NDArray[np.bool_]:
        """Mask of the tensors that the part writes, ``(num_tensors,)``."""
        producer = self.arrays.tensor_producer
        return (producer >= 0) & (producer < self.num_ops)

    @cached_property
    def read_after(self) -> NDArray[np.bool_]:
        found = np.zeros(self.arrays.tensor_bytes.size, dtype=np.bool_)
        found[self.arrays.read_tensor[self.arrays.read_start[self.num_ops] :]] = True
        return found

    @cached_property
    def must_keep(self) -> NDArray[np.bool_]:
        return self.made & self.arrays.op_once[self.arrays.tensor_producer]

    @property
    def op_time_s(self) -> NDArray[np.float64]:
        """Times of the ops of the part, ``(num_ops,)``."""
        return self.arrays.op_time_s[: self.num_ops]

    def outputs_read_after(self, group: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the tensors that an op of the part in a later group than the producer's reads.

        `group` numbers the groups of the part's ops, ``(num_ops,)``.
        """
        arrays = self.arrays
        end = arrays.read_start[self.num_ops]
        reader = np.repeat(np.arange(self.num_ops), np.diff(arrays.read_start[: self.num_ops + 1]))
        tensors = arrays.read_tensor[:end]
        producer = arrays.tensor_producer[tensors]
        crossing = (producer >= 0) & (group[reader] > group[producer])
        found = np.zeros(arrays.tensor_bytes.size, dtype=np.bool_)
        found[tensors[crossing]] = True
        return found

    def runs_keeping(
        self, keep: NDArray[np.bool_], order: NDArray[np.int64] | None = None
    ) -> NDArray[np.int32]:
        """The op runs when only the tensors in `keep` outlive the part; O(ops + reads) a run.

        The ops run in order. Where an op after the part lacks a tensor, the tensor is recomputed
        first, with all that it needs, in the graph's order, from what is kept or has already been
        recomputed; so every op of the part runs at most twice. What cannot be recomputed is kept.

        Parameters
        ----------
        keep : (num_tensors,) bool
        order : (num_ops of the graph,) int64
            The order of first runs, those of the part before all others; the graph's by default.
        """
        arrays = self.arrays
        if order is None:
            order = np.arange(arrays.op_time_s.size)
        lacking = self.made & ~keep & ~self.must_keep
        runs: NDArray[np.int32] = _runs_on_demand(
            lacking,
            order,
            self.num_ops,
            arrays.read_start,
            arrays.read_tensor,
            arrays.write_start,
            arrays.write_tensor,
            arrays.tensor_producer,
        )
        return runs

    def runs_of_groups(
        self, group: NDArray[np.int64], order: NDArray[np.int64] | None = None
    ) -> NDArray[np.int32]:
        """The op runs when what crosses groups is kept, and the whole last group.

        The last group is followed by its own backward, so that dropping it would free nothing.
        """
        keep = self.outputs_read_after(group)
        if self.num_ops:
            producer = self.arrays.tensor_producer
            keep |= self.made & (group[np.minimum(producer, self.num_ops - 1)] == group.max())
        return self.runs_keeping(keep, order)


def forward_part(arrays: GraphArrays) -> ForwardPart:
    """The ops before the first one of another phase.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("g", (Op("f", writes={"x": 8}), Op("b", "backward", reads=("x",))))
    >>> forward_part(graph.arrays).num_ops
    1
    """
    other = np.flatnonzero(arrays.op_phase != 0)
    return ForwardPart(arrays, int(other[0]) if other.size else arrays.op_phase.size)


@njit(cache=True)
def _runs_on_demand(
    lacking: Any,
    order: Any,
    num_forward: int,
    read_start: Any,
    read_tensor: Any,
    write_start: Any,
    write_tensor: Any,
    tensor_producer: Any,
) -> Any:
    num_ops = read_start.size - 1
    runs = np.empty(num_ops + num_forward, np.int32)
    wanted = np.zeros(num_ops, np.bool_)
    stack = np.empty(num_ops + 1, np.int64)
    made = 0
    for op in order:
        if op >= num_forward:
            lowest, height = num_ops, 1
            stack[0] = op
            while height:
                height -= 1
                node = stack[height]
                for r in range(read_start[node], read_start[node + 1]):
                    t = read_tensor[r]
                    if lacking[t] and not wanted[tensor_producer[t]]:
                        wanted[tensor_producer[t]] = True
                        lowest = min(lowest, tensor_producer[t])
                        stack[height] = tensor_producer[t]
                        height += 1
            for again in range(lowest, num_forward):
                if wanted[again]:
                    wanted[again] = False
                    runs[made] = again
                    made += 1
                    for w in range(write_start[again], write_start[again + 1]):
                        lacking[write_tensor[w]] = False
        runs[made] = op
        made += 1
    return runs[:made]
