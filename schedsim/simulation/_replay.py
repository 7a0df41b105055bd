"""The kernel behind `schedsim.simulate`: lifetimes and live bytes of a schedule on one stream.

Compiled by numba on first use and cached on disk (`schedsim.kernels.cached`); imported only by
`simulate`.
"""

from __future__ import annotations

from ..dataflow.arrays import GraphArrays
from ..kernels.compiled import kernel
from ..kernels.record import Codes, Ints, ShortInts, ShortTable

# Faults of a schedule; `simulator` turns these codes into errors.
LEGAL, MISSING_INPUT, RUN_TWICE, NEVER_RUN = 0, 1, 2, 3

# Categories of live bytes, in the order of `categories.CATEGORIES`.
STATIC, CHECKPOINT, SAVED, GRADIENT, RECOMPUTE, TRANSIENT, WORKSPACE = range(7)
FORWARD_PHASE = 0
BACKWARD_PHASE = 2


# Rows of the table `instances`: a fixed array and not a list, as a list in a kernel would be an
# object of Python's.
TENSOR, FIRST, LAST, SOURCE = range(4)

# Entries of `outcome`: the fault, the run, and the op or tensor at fault.
CODE, RUN, ITEM = range(3)


@kernel
def replay_runs(
    graph: GraphArrays,
    runs: ShortInts,
    instances: ShortTable,
    category: Codes,
    latest: Ints,
    count: ShortInts,
    memory: Ints,
    outcome: Ints,
) -> None:
    """Find each instance of a tensor and the runs over which it lives; O(runs + reads + writes).

    The kernel writes `instances` (4, num_instances) and `category` (num_instances,). The rows of
    `instances` are the instance's tensor, its first run, its last run, and the instance whose
    storage it may take over (-1: none). The last run is -1 for an instance that is never
    materialised. Graph inputs come first, then outputs run by run. `latest` (num_tensors,) and
    `count` (num_ops,) are scratch space, -1 and 0 at first.

    `memory` (num_runs + 1,), zero at first, is filled with the bytes of the instances alive during
    each run; the last entry is the bytes alive after all runs. An empty `memory` is not filled.
    """
    num_tensors, num_runs = graph.tensor_producer.size, runs.size
    made = 0
    for t in range(num_tensors):
        if graph.tensor_producer[t] < 0:
            instances[TENSOR, made], instances[FIRST, made], instances[LAST, made] = t, 0, -1
            instances[SOURCE, made], category[made] = -1, TRANSIENT
            latest[t] = made
            made += 1
    for k in range(num_runs):
        op = runs[k]
        phase, copy = graph.op_phase[op], graph.op_copy[op]
        repeat = count[op] > 0
        if repeat and graph.op_once[op]:
            outcome[CODE], outcome[RUN], outcome[ITEM] = RUN_TWICE, k, op
            return
        count[op] += 1
        first_read, after_reads = graph.read_start[op], graph.read_start[op + 1]
        for r in range(first_read, after_reads):
            t = graph.read_tensor[r]
            instance = latest[t]
            if instance < 0:
                outcome[CODE], outcome[RUN], outcome[ITEM] = MISSING_INPUT, k, t
                return
            instances[LAST, instance] = k
            if copy:
                continue
            kept = category[instance]
            if repeat and phase == FORWARD_PHASE:
                # A repeated forward run reads the instance: it is a checkpoint, whatever else reads
                # it.
                if kept in (TRANSIENT, SAVED):
                    category[instance] = CHECKPOINT
            elif phase == BACKWARD_PHASE and kept == TRANSIENT:
                category[instance] = SAVED
        kind = TRANSIENT  # until a run reads it
        if copy:
            if (
                first_read < after_reads
                and category[latest[graph.read_tensor[first_read]]] == GRADIENT
            ):
                kind = GRADIENT
        elif phase != FORWARD_PHASE:
            kind = GRADIENT
        elif repeat:
            kind = RECOMPUTE
        for w in range(graph.write_start[op], graph.write_start[op + 1]):
            t = graph.write_tensor[w]
            instances[TENSOR, made], instances[FIRST, made] = t, k
            instances[LAST, made] = -1 if graph.write_optional[w] else k
            over = graph.write_takes_over[w]
            instances[SOURCE, made] = latest[over] if over >= 0 else -1
            category[made] = kind
            latest[t] = made
            made += 1
    for op in range(count.size):
        if count[op] == 0 and graph.op_required[op]:
            outcome[CODE], outcome[RUN], outcome[ITEM] = NEVER_RUN, -1, op
            return
    for t in range(num_tensors):
        if graph.tensor_result[t]:
            instances[LAST, latest[t]] = num_runs - 1
    for i in range(made):
        # A result lives past the last run, so that run may read it but not take over its storage.
        source = instances[SOURCE, i]
        if source >= 0:
            t = instances[TENSOR, source]
            if graph.tensor_result[t] and latest[t] == source:
                instances[SOURCE, i] = -1
    if memory.size == 0:
        return
    for i in range(made):
        last, first = instances[LAST, i], instances[FIRST, i]
        if last < 0:
            continue
        size = graph.tensor_bytes[instances[TENSOR, i]]
        memory[first] += size
        memory[last + 1] -= size
        source = instances[SOURCE, i]
        if source >= 0 and instances[LAST, source] == first:
            # In place: this run is the input's last use, so input and output share the larger
            # storage.
            shared = min(size, graph.tensor_bytes[instances[TENSOR, source]])
            memory[first] -= shared
            memory[first + 1] += shared
    for k in range(num_runs):
        memory[k + 1] += memory[k]
