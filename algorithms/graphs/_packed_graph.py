"""A graph as the kernels of the local search read it.

Two virtual ops make the ends of a schedule ordinary: one before everything writes the graph's
inputs, one after everything reads its results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedsim.dataflow.arrays import GraphArrays
from schedsim.kernels.record import Ints, Reals, Record, Table

# Columns of `PackedGraph.op`. The last three say where the op's entries in `flat` and `share`
# begin; the next row says where they end.
WORKSPACE, SAVING, FIXED, READS, WRITES, SHARES = range(6)
# Columns of `PackedGraph.tensor`.
PRODUCER, NTH, SIZE, UNBUILT, READERS = range(5)


@dataclass(frozen=True, eq=False)
class PackedGraph(Record):
    """A graph for the kernels: the arrays of `GraphArrays` with the two virtual ops, n and n + 1.

    There are few arrays, with named columns, all of one type, because kernels then compile several
    times as fast.

    Attributes
    ----------
    time_s : (num_ops + 2,)
    op : (num_ops + 3, 6)
        Workspace in bytes; additional workspace of a run that keeps an optional output; whether the
        op runs only once (`once` ops and the virtual ones); first entries of what it reads and of
        what it writes in `flat`, and of what it takes over in `share`.
    tensor : (num_tensors + 1, 5)
        Producer; place among the producer's outputs; bytes; whether it is not materialised where
        nobody reads it; first entry in `flat` of the ops that read it.
    flat : (any,)
        Tensors read, tensors written, ops that read.
    share : (any, 2)
        Input whose storage an output takes over, and the bytes this saves.
    """

    time_s: Reals
    op: Table
    tensor: Table
    flat: Ints
    share: Table


# The type of an argument that a kernel is declared to take.
PACKED_GRAPH = PackedGraph


def pack_graph(arrays: GraphArrays) -> PackedGraph:
    """`arrays` with the two virtual ops; O(ops + reads)."""
    num_ops, num_tensors = arrays.op_time_s.size, arrays.tensor_bytes.size
    inputs = np.flatnonzero(arrays.tensor_producer < 0)
    results = np.flatnonzero(arrays.tensor_result)
    reads = np.concatenate([np.diff(arrays.read_start), [0, results.size]])
    writes = np.concatenate([np.diff(arrays.write_start), [inputs.size, 0]])
    read_tensor = np.concatenate([arrays.read_tensor, results])
    write_tensor = np.concatenate([arrays.write_tensor, inputs])
    producer = np.repeat(np.arange(num_ops + 2), writes)
    reader = np.repeat(np.arange(num_ops + 2), reads)
    by_tensor = np.argsort(read_tensor, kind="stable")

    op = np.zeros((num_ops + 3, 6), np.int64)
    op[:num_ops, WORKSPACE] = arrays.op_workspace_bytes
    op[:num_ops, SAVING] = arrays.op_saving_workspace_bytes - arrays.op_workspace_bytes
    op[:, FIXED] = 1
    op[:num_ops, FIXED] = arrays.op_once
    op[1:, READS] = np.cumsum(reads)
    op[0, WRITES] = read_tensor.size
    op[1:, WRITES] = read_tensor.size + np.cumsum(writes)
    # An output that is not always materialised is not relied on to save its input's bytes.
    takers = np.flatnonzero((arrays.tensor_takes_over >= 0) & ~arrays.tensor_optional)
    takers = takers[np.argsort(arrays.tensor_producer[takers], kind="stable")]
    sources = arrays.tensor_takes_over[takers]
    op[1:, SHARES] = np.cumsum(np.bincount(arrays.tensor_producer[takers], minlength=num_ops + 2))

    tensor = np.zeros((num_tensors + 1, 5), np.int64)
    tensor[write_tensor, PRODUCER] = producer
    tensor[write_tensor, NTH] = np.arange(producer.size) - (op[producer, WRITES] - op[0, WRITES])
    tensor[:num_tensors, SIZE] = arrays.tensor_bytes
    tensor[:num_tensors, UNBUILT] = arrays.tensor_optional | (arrays.tensor_producer < 0)
    tensor[0, READERS] = op[-1, WRITES]
    tensor[1:, READERS] = op[-1, WRITES] + np.cumsum(
        np.bincount(read_tensor, minlength=num_tensors)
    )
    saved = np.minimum(arrays.tensor_bytes[takers], arrays.tensor_bytes[sources])
    return PackedGraph(
        time_s=np.concatenate([arrays.op_time_s, np.zeros(2)]),
        op=op,
        tensor=tensor,
        flat=np.concatenate([read_tensor, write_tensor, reader[by_tensor]]).astype(np.int64),
        share=np.stack([sources, saved], axis=1).astype(np.int64),
    )
