"""The memory that a run of an op needs by itself, whatever else is alive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .graph import Graph

Ints = NDArray[np.int64]


def own_bytes(graph: Graph) -> Ints:
    """Least bytes of inputs, outputs and workspace of a run of each op, shape ``(num_ops,)``.

    Optional outputs are not counted. An output that may take over the storage of an input counts
    beside that input: whether it does depends on later reads.
    """
    arrays = graph.arrays
    readers = np.repeat(np.arange(graph.num_ops), np.diff(arrays.read_start))
    own = np.minimum(arrays.op_workspace_bytes, arrays.op_saving_workspace_bytes)
    has_optional = np.zeros(graph.num_ops, dtype=np.bool_)
    has_optional[arrays.tensor_producer[arrays.tensor_optional]] = True
    own = np.where(has_optional, own, arrays.op_workspace_bytes)
    np.add.at(own, readers, arrays.tensor_bytes[arrays.read_tensor])
    solid = (arrays.tensor_producer >= 0) & ~arrays.tensor_optional
    np.add.at(own, arrays.tensor_producer[solid], arrays.tensor_bytes[solid])
    return own


def least_own_bytes(graph: Graph) -> Ints:
    """`own_bytes` where every output takes over the storage that it may: no run needs less."""
    arrays = graph.arrays
    own = own_bytes(graph)
    outputs = np.flatnonzero((arrays.tensor_takes_over >= 0) & ~arrays.tensor_optional)
    sources = arrays.tensor_takes_over[outputs]
    shared = np.minimum(arrays.tensor_bytes[outputs], arrays.tensor_bytes[sources])
    np.subtract.at(own, arrays.tensor_producer[outputs], shared)
    return own
