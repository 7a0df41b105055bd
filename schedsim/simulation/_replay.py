"""The kernel behind `schedsim.simulate`: lifetimes and live bytes of a schedule, one queue.

Compiled by numba on first use and cached beside this file; imported only by `simulate`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# What can be wrong with a schedule; the wrapper turns these into errors.
LEGAL, MISSING_INPUT, RUN_TWICE, NEVER_RUN = 0, 1, 2, 3

# Categories of live bytes, in the order of `simulator.CATEGORIES`.
STATIC, CHECKPOINT, SAVED, GRADIENT, RECOMPUTE, TRANSIENT, WORKSPACE = range(7)
FORWARD_PHASE = 0
BACKWARD_PHASE = 2


@njit(cache=True)
def find_lifetimes(
    runs: NDArray[np.int32],
    op_phase: NDArray[np.int8],
    op_once: NDArray[np.bool_],
    read_start: NDArray[np.int64],
    read_tensor: NDArray[np.int64],
    write_start: NDArray[np.int64],
    write_tensor: NDArray[np.int64],
    tensor_producer: NDArray[np.int64],
    tensor_result: NDArray[np.bool_],
    write_optional: NDArray[np.bool_],
    write_takes_over: NDArray[np.int64],
    op_required: NDArray[np.bool_],
    op_copy: NDArray[np.bool_],
) -> Any:
    """Instances of tensors with the runs over which they live; O(runs + reads + writes).

    Returns (code, run, op or tensor, tensor, first, last, source, category); the last five have
    one entry per instance. `last` is -1 for an instance that is never materialised, `source` is
    the instance whose storage it may take over (-1: none). Instances stand in the order: graph
    inputs, then outputs run by run.
    """
    num_tensors = tensor_producer.size
    num_ops = op_phase.size
    num_instances = 0
    for t in range(num_tensors):
        if tensor_producer[t] < 0:
            num_instances += 1
    for k in range(runs.size):
        num_instances += write_start[runs[k] + 1] - write_start[runs[k]]
    tensor = np.empty(num_instances, np.int32)
    first = np.empty(num_instances, np.int32)
    last = np.empty(num_instances, np.int32)
    source = np.full(num_instances, -1, np.int32)
    category = np.empty(num_instances, np.int8)

    latest = np.full(num_tensors, -1, np.int64)
    count = np.zeros(num_ops, np.int32)
    made = 0
    for t in range(num_tensors):
        if tensor_producer[t] < 0:
            tensor[made], first[made], last[made], category[made] = t, 0, -1, TRANSIENT
            latest[t] = made
            made += 1
    for k in range(runs.size):
        op = runs[k]
        repeat = count[op] > 0
        if repeat and op_once[op]:
            return RUN_TWICE, k, op, tensor, first, last, source, category
        count[op] += 1
        for r in range(read_start[op], read_start[op + 1]):
            t = read_tensor[r]
            instance = latest[t]
            if instance < 0:
                return MISSING_INPUT, k, t, tensor, first, last, source, category
            last[instance] = k
            if op_copy[op]:
                continue
            kept = category[instance]
            if repeat and op_phase[op] == FORWARD_PHASE:
                # Something is recomputed from it: a checkpoint, whoever else reads it.
                if kept in (TRANSIENT, SAVED):
                    category[instance] = CHECKPOINT
            elif op_phase[op] == BACKWARD_PHASE and kept == TRANSIENT:
                category[instance] = SAVED
        for w in range(write_start[op], write_start[op + 1]):
            t = write_tensor[w]
            tensor[made] = t
            first[made] = k
            last[made] = -1 if write_optional[w] else k
            if op_copy[op]:
                read = read_start[op]
                if read < read_start[op + 1] and category[latest[read_tensor[read]]] == GRADIENT:
                    category[made] = GRADIENT
                else:
                    category[made] = TRANSIENT  # until somebody reads it
            elif op_phase[op] != FORWARD_PHASE:
                category[made] = GRADIENT
            else:
                category[made] = RECOMPUTE if repeat else TRANSIENT
            if write_takes_over[w] >= 0:
                source[made] = latest[write_takes_over[w]]
            latest[t] = made
            made += 1
    for op in range(num_ops):
        if count[op] == 0 and op_required[op]:
            return NEVER_RUN, -1, op, tensor, first, last, source, category
    for t in range(num_tensors):
        if tensor_result[t]:
            last[latest[t]] = runs.size - 1
    for i in range(made):
        # The last run may read a result, but not take over its storage: the result outlives it.
        if source[i] >= 0:
            t = tensor[source[i]]
            if tensor_result[t] and latest[t] == source[i]:
                source[i] = -1
    return LEGAL, -1, -1, tensor, first, last, source, category


@njit(cache=True)
def live_bytes(
    num_runs: int,
    tensor: NDArray[np.int32],
    first: NDArray[np.int32],
    last: NDArray[np.int32],
    source: NDArray[np.int32],
    chosen: NDArray[np.bool_],
    tensor_bytes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Bytes of the chosen instances alive during each run, shape ``(num_runs,)``."""
    change = np.zeros(num_runs + 1, np.int64)
    for i in range(tensor.size):
        if last[i] < 0 or not chosen[i]:
            continue
        size = tensor_bytes[tensor[i]]
        change[first[i]] += size
        change[last[i] + 1] -= size
        from_ = source[i]
        if from_ >= 0 and last[from_] == first[i]:
            # In place: this run is the input's last use, so the two share the larger storage.
            shared = min(size, tensor_bytes[tensor[from_]])
            change[first[i]] -= shared
            change[first[i] + 1] += shared
    live = np.empty(num_runs, np.int64)
    total = 0
    for k in range(num_runs):
        total += change[k]
        live[k] = total
    return live
