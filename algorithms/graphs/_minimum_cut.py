"""Which forward tensors to save so that the rest can be recomputed: a minimum cut by bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ._forward_part import ForwardPart

MAX_CAPACITY = 2**30
"""scipy's maximum flow counts in int32: bytes are scaled so that all of them stay below this."""


def cheapest_saved(part: ForwardPart, may_recompute: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The tensors of least total size from which `may_recompute` makes all that the backward reads.

    Every tensor is an arc of its size; an op that may be recomputed lets flow pass from what it
    reads to what it writes; other ops, and the graph's inputs, are sources; a tensor that an op
    after the part reads leads to the sink. Among equal cuts, the function takes the cut nearest to
    the backward, which recomputes least.

    Parameters
    ----------
    may_recompute : (num_ops,) bool
        Whether the op may run again; of the other ops, the outputs or what is made of them are
        saved.

    Returns
    -------
    saved : (num_tensors,) bool

    Notes
    -----
    Sizes are rounded up to a unit where all bytes together pass `MAX_CAPACITY` units, so that the
    cut is least up to one unit a tensor. The maximum flow is Dinic's.
    """
    arrays = part.arrays
    num_tensors = arrays.tensor_bytes.size
    # A result stays to the end in any case: saving it costs nothing.
    sizes = np.where(arrays.tensor_result, 0, arrays.tensor_bytes)
    unit = -(-int(sizes.sum()) // (MAX_CAPACITY - num_tensors))
    capacity = -(-sizes // max(1, unit))
    endless = int(capacity.sum()) + 1

    # Nodes: one where a tensor is written, one where it is read, the part's ops, source and sink.
    tensors = np.arange(num_tensors)
    op_node = 2 * num_tensors + np.arange(part.num_ops)
    source, sink = 2 * num_tensors + part.num_ops, 2 * num_tensors + part.num_ops + 1
    end = arrays.read_start[part.num_ops]
    reader = np.repeat(np.arange(part.num_ops), np.diff(arrays.read_start[: part.num_ops + 1]))
    read = arrays.read_tensor[:end]
    passing = may_recompute[reader]
    made = np.flatnonzero(part.made)
    producer = arrays.tensor_producer[made]
    again = may_recompute[producer]
    given = np.concatenate([made[~again], np.flatnonzero(arrays.tensor_producer < 0)])
    wanted = np.flatnonzero(part.read_after & (part.made | (arrays.tensor_producer < 0)))
    tails = [tensors, num_tensors + read[passing], op_node[producer[again]]]
    heads = [num_tensors + tensors, op_node[reader[passing]], made[again]]
    tails += [np.full(given.size, source), num_tensors + wanted]
    heads += [given, np.full(wanted.size, sink)]
    weights = [capacity, *(np.full(tail.size, endless) for tail in tails[1:])]
    num_nodes = sink + 1
    network = csr_array(
        (
            np.concatenate(weights).astype(np.int32),
            (np.concatenate(tails).astype(np.int32), np.concatenate(heads).astype(np.int32)),
        ),
        shape=(num_nodes, num_nodes),
    )
    network.eliminate_zeros()
    flow = maximum_flow(network, source, sink).flow
    residual = network - flow
    residual.eliminate_zeros()
    reaches = np.zeros(num_nodes, dtype=np.bool_)
    reaches[breadth_first_order(csr_array(residual.T), sink, return_predecessors=False)] = True
    return reaches[num_tensors : 2 * num_tensors] & ~reaches[:num_tensors]
