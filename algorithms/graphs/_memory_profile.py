"""The live-memory profile of a schedule under edits: runs come and go, the peak stays known.

A schedule is a line of runs, each in a numbered slot, with gaps between them. Live bytes per slot
are kept in a tree that adds to a range and finds the largest value in O(log slots), so that
inserting or removing a run costs as many range updates as the op reads and writes tensors.
Lifetimes follow the rule of the simulator to the byte: optional outputs, storage taken over in
place and both workspaces are included.

Two virtual ops make the ends of the line ordinary: one before everything writes the graph's inputs,
one after everything reads its results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.arrays import GraphArrays
from schedsim.kernels.compiled import kernel_for as kernel
from schedsim.kernels.record import Ints, RandomState, Reals, Record, Table

# Added to an empty slot, so that an empty slot is never the largest; far above any sum of sizes.
_EMPTY = 1 << 60

# Entries of `Profile.counts`.
NUM_SPARE, NUM_EDITS, NUM_SLOTS, NUM_EXTRA, NUM_REBUILDS, PER_RUN, WORK = range(7)

WORK_PER_UNIT = 56_000_000.0
"""Steps counted in ``counts[WORK]`` that one core does in about a second, a unit of effort, on a
tree that fits the nearest caches; see `work_per_unit`."""

# Kinds of edits in the journal.
INSERTED, REMOVED = 0, 1

# Columns of `PackedGraph.op`. The last three say where the op's entries in `flat` and `share`
# begin; the next row says where they end.
WORKSPACE, SAVING, FIXED, READS, WRITES, SHARES = range(6)
# Columns of `PackedGraph.tensor`.
PRODUCER, NTH, SIZE, UNBUILT, READERS = range(5)
# Columns of `Profile.run`.
OP, SLOT, NEXT, PREV, KEPT, EXTRA_AT, EXTRA, SPARE = range(8)
# Columns of `Profile.ends` and of `Profile.tree`.
FIRST, LAST = range(2)
LARGEST, ADDED = range(2)


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


@dataclass(frozen=True, eq=False)
class Profile(Record):
    """A schedule with its lifetimes and live bytes; every array is changed in place.

    Attributes
    ----------
    run : (most_runs, 8)
        Op of the run (-1: row not in use), slot, next and previous run of that op (-1: none),
        number of optional outputs read, place in the list of extra runs (-1: the op's first run).
        The last two columns are lists of their own: extra runs, in no order, and unused rows.
    end_of : (most_runs * outputs,)
        For each run and output, the run that reads the instance last, or the run itself.
    slot_run : (num_slots,)
        The run in each slot; -1 for none.
    ends : (num_ops + 2, 2)
        First and last run of an op.
    tree : (2 * num_slots, 2)
        Largest live bytes below a node, and what was added to all slots below it.
    journal : (most_edits, 3)
        Kind of edit, run or op, the run that follows.
    counts : (8,)
        Among them `WORK`, which only grows: ranges added to and looked at, readers and candidates
        visited. It measures what a move costs, and is equal on every machine.
    total_s : (1,)
    scratch : (4, any)
        Stacks of the moves.
    random : (1,)
    free : bool
        Whether first runs may change their order.
    """

    run: Table
    end_of: Ints
    slot_run: Ints
    ends: Table
    tree: Table
    journal: Table
    counts: Ints
    total_s: Reals
    scratch: Table
    random: RandomState
    free: bool


# Types of the arguments that a kernel is declared to take.
INT, REAL, BOOL = int, float, bool
INTS, REALS, TABLE = Ints, Reals, Table
PACKED_GRAPH, PROFILE = PackedGraph, Profile


def work_per_unit(num_slots: int) -> float:
    """Steps in ``counts[WORK]`` that a core does in about a second, on a tree of `num_slots`."""
    return WORK_PER_UNIT / (1.0 + max(0.0, math.log2(num_slots / 8192)) / 4)


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


def make_profile(
    packed: PackedGraph,
    runs: NDArray[Any],
    *,
    seed: int = 0,
    room: float = 8.0,
    free: bool = False,
) -> Profile:
    """The profile of the schedule `runs`, which must be legal; slots for `room` times the ops.

    Where the order is `free`, first runs may be moved, and dropped where a repeat replaces them.
    """
    num_ops = packed.time_s.size - 2
    num_slots = 1 << max(6, int(np.ceil(np.log2(max(room * num_ops, 3.0 * runs.size)))))
    num_runs = num_slots // 2
    outputs = np.diff(packed.op[:, WRITES])
    per_run = max(1, int(outputs[:num_ops].max(initial=0)))
    most_reads = int(np.diff(packed.op[:, READS]).max(initial=0))
    num_ends = (num_runs - 1) * per_run + max(per_run, int(outputs[num_ops]))
    profile = Profile(
        run=np.full((num_runs, 8), -1, np.int64),
        end_of=np.full(num_ends, -1, np.int64),
        slot_run=np.full(num_slots, -1, np.int64),
        ends=np.full((num_ops + 2, 2), -1, np.int64),
        tree=np.zeros((2 * num_slots, 2), np.int64),
        journal=np.zeros((65536, 3), np.int64),
        counts=np.zeros(8, np.int64),
        total_s=np.zeros(1),
        scratch=np.zeros((4, 64 * most_reads + 1024), np.int64),
        random=np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64], np.uint64),
        free=free,
    )
    profile.counts[NUM_SLOTS], profile.counts[PER_RUN] = num_slots, per_run
    load_runs(packed, profile, runs.astype(np.int64))
    return profile


@kernel(PROFILE)
def random_unit(profile: Profile) -> float:
    """A random number in [0, 1); xorshift64* (Vigna 2016)."""
    x = profile.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    profile.random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel(TABLE, INT)
def _pull(tree: NDArray[np.int64], node: int) -> None:
    """Set the largest value of an inner node from its children."""
    tree[node, LARGEST] = tree[node, ADDED] + max(
        tree[2 * node, LARGEST], tree[2 * node + 1, LARGEST]
    )


@kernel(PROFILE, INT, INT, INT)
def add_range(profile: Profile, low: int, high: int, change: int) -> None:
    """Add `change` to the slots low..high, both ends included."""
    tree = profile.tree
    num_slots = profile.counts[NUM_SLOTS]
    profile.counts[WORK] += 4
    left, right = low + num_slots - 1, high + num_slots + 1
    while left ^ right ^ 1:
        if not left & 1:
            tree[left ^ 1, LARGEST] += change
            tree[left ^ 1, ADDED] += change
        if right & 1:
            tree[right ^ 1, LARGEST] += change
            tree[right ^ 1, ADDED] += change
        left >>= 1
        right >>= 1
        _pull(tree, left)
        _pull(tree, right)
    while left > 1:
        left >>= 1
        _pull(tree, left)


@kernel(PROFILE, INT, INT)
def max_range(profile: Profile, low: int, high: int) -> int:
    """The largest of the slots low..high; below zero where all of these are empty."""
    if low > high:
        return -_EMPTY
    num_slots = profile.counts[NUM_SLOTS]
    profile.counts[WORK] += 2
    left, right = low + num_slots - 1, high + num_slots + 1
    of_left = of_right = -2 * _EMPTY
    while left ^ right ^ 1:
        if not left & 1:
            of_left = max(of_left, profile.tree[left ^ 1, LARGEST])
        if right & 1:
            of_right = max(of_right, profile.tree[right ^ 1, LARGEST])
        left >>= 1
        right >>= 1
        of_left += profile.tree[left, ADDED]
        of_right += profile.tree[right, ADDED]
    largest = max(of_left, of_right)
    while left > 1:
        left >>= 1
        largest += profile.tree[left, ADDED]
    return int(largest)


@kernel(PROFILE)
def peak_slot(profile: Profile) -> int:
    """The first slot at which live bytes are largest."""
    num_slots = profile.counts[NUM_SLOTS]
    node = 1
    while node < num_slots:
        node *= 2
        if profile.tree[node + 1, LARGEST] > profile.tree[node, LARGEST]:
            node += 1
    return int(node - num_slots)


@kernel(PROFILE, INT)
def first_out(profile: Profile, run: int) -> int:
    """The place of the first instance of `run` in `end_of`."""
    return int(run * profile.counts[PER_RUN])


@kernel(PROFILE, INT, INT)
def run_before(profile: Profile, op: int, slot: int) -> int:
    """The last run of `op` before `slot`, or -1."""
    run = profile.ends[op, LAST]
    while run >= 0 and profile.run[run, SLOT] >= slot:
        run = profile.run[run, PREV]
    return int(run)


@kernel(PACKED_GRAPH, PROFILE, INT, INT, INT)
def last_read(packed: PackedGraph, profile: Profile, tensor: int, after: int, before: int) -> int:
    """The last run between two slots, both excluded, that reads `tensor`; -1 for none."""
    best = -1
    for i in range(packed.tensor[tensor, READERS], packed.tensor[tensor + 1, READERS]):
        profile.counts[WORK] += 1
        run = run_before(profile, packed.flat[i], before)
        if run >= 0 and profile.run[run, SLOT] > after:
            after = profile.run[run, SLOT]
            best = run
    return best


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def next_read(packed: PackedGraph, profile: Profile, tensor: int, after: int) -> int:
    """The first run after a slot that reads `tensor`; -1 for none."""
    best, best_slot = -1, profile.counts[NUM_SLOTS]
    for i in range(packed.tensor[tensor, READERS], packed.tensor[tensor + 1, READERS]):
        run = profile.ends[packed.flat[i], LAST]
        while run >= 0 and profile.run[run, SLOT] > after:
            profile.counts[WORK] += 1
            if profile.run[run, SLOT] < best_slot:
                best, best_slot = run, profile.run[run, SLOT]
            run = profile.run[run, PREV]
    return int(best)


@kernel(PACKED_GRAPH, INT, INT)
def _shared(packed: PackedGraph, op: int, tensor: int) -> int:
    """Bytes that a run of `op` saves where that run is the last to read `tensor`."""
    for i in range(packed.op[op, SHARES], packed.op[op + 1, SHARES]):
        if packed.share[i, 0] == tensor:
            return int(packed.share[i, 1])
    return 0


@kernel(PACKED_GRAPH, PROFILE, INT, INT, INT)
def _set_end(packed: PackedGraph, profile: Profile, run: int, tensor: int, end: int) -> None:
    """Make the instance of `tensor` that `run` writes live to the run `end`."""
    at = first_out(profile, run) + packed.tensor[tensor, NTH]
    old = profile.end_of[at]
    if old == end:
        return
    profile.end_of[at] = end
    size = packed.tensor[tensor, SIZE]
    if old != run:
        shared = _shared(packed, profile.run[old, OP], tensor)
        if shared:
            add_range(profile, profile.run[old, SLOT], profile.run[old, SLOT], shared)
    if end != run:
        shared = _shared(packed, profile.run[end, OP], tensor)
        if shared:
            add_range(profile, profile.run[end, SLOT], profile.run[end, SLOT], -shared)
    was, will = profile.run[old, SLOT], profile.run[end, SLOT]
    if packed.tensor[tensor, UNBUILT]:  # nothing is charged until some run reads it
        extra = packed.op[profile.run[run, OP], SAVING]
        if old == run:
            was -= 1
            profile.run[run, KEPT] += 1
            if profile.run[run, KEPT] == 1 and extra:
                add_range(profile, profile.run[run, SLOT], profile.run[run, SLOT], extra)
        elif end == run:
            will -= 1
            profile.run[run, KEPT] -= 1
            if profile.run[run, KEPT] == 0 and extra:
                add_range(profile, profile.run[run, SLOT], profile.run[run, SLOT], -extra)
    if will > was:
        add_range(profile, was + 1, will, size)
    else:
        add_range(profile, will + 1, was, -size)


@kernel(PACKED_GRAPH, PROFILE)
def rebuild(packed: PackedGraph, profile: Profile) -> None:
    """Spread the runs evenly over the slots and sum live bytes anew; O(runs + slots)."""
    num_slots = profile.counts[NUM_SLOTS]
    slot_run = profile.slot_run
    line = np.empty(num_slots, np.int64)
    num_runs = 0
    for slot in range(num_slots):
        if slot_run[slot] >= 0:
            line[num_runs] = slot_run[slot]
            num_runs += 1
            slot_run[slot] = -1
    for i in range(num_runs):
        slot = 1 + i * (num_slots - 3) // (num_runs - 1)
        slot_run[slot] = line[i]
        profile.run[line[i], SLOT] = slot
    live = np.zeros(num_slots + 1, np.int64)
    for i in range(num_runs):
        run = line[i]
        op, slot = profile.run[run, OP], profile.run[run, SLOT]
        out = first_out(profile, run)
        for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
            tensor = packed.flat[w]
            end = profile.end_of[out]
            out += 1
            if end == run and packed.tensor[tensor, UNBUILT]:
                continue
            live[slot] += packed.tensor[tensor, SIZE]
            live[profile.run[end, SLOT] + 1] -= packed.tensor[tensor, SIZE]
            if end != run:
                shared = _shared(packed, profile.run[end, OP], tensor)
                live[profile.run[end, SLOT]] -= shared
                live[profile.run[end, SLOT] + 1] += shared
    total = 0
    for slot in range(num_slots):
        total += live[slot]
        run, value = slot_run[slot], total - _EMPTY
        if run >= 0 and profile.run[run, OP] < packed.time_s.size - 2:
            value = total + packed.op[profile.run[run, OP], WORKSPACE]
            if profile.run[run, KEPT] > 0:
                value += packed.op[profile.run[run, OP], SAVING]
        profile.tree[num_slots + slot, LARGEST] = value
        profile.tree[num_slots + slot, ADDED] = 0
    for node in range(num_slots - 1, 0, -1):
        profile.tree[node, LARGEST] = max(
            profile.tree[2 * node, LARGEST], profile.tree[2 * node + 1, LARGEST]
        )
        profile.tree[node, ADDED] = 0
    profile.counts[NUM_REBUILDS] += 1
    profile.counts[WORK] += num_slots // 2


@kernel(PROFILE, INT)
def _add_extra(profile: Profile, run: int) -> None:
    count = profile.counts[NUM_EXTRA]
    profile.run[count, EXTRA] = run
    profile.run[run, EXTRA_AT] = count
    profile.counts[NUM_EXTRA] = count + 1


@kernel(PROFILE, INT)
def _drop_extra(profile: Profile, run: int) -> None:
    last = profile.counts[NUM_EXTRA] - 1
    moved = profile.run[last, EXTRA]
    profile.run[profile.run[run, EXTRA_AT], EXTRA] = moved
    profile.run[moved, EXTRA_AT] = profile.run[run, EXTRA_AT]
    profile.run[run, EXTRA_AT] = -1
    profile.counts[NUM_EXTRA] = last


@kernel(PACKED_GRAPH, PROFILE, INTS)
def load_runs(packed: PackedGraph, profile: Profile, runs: NDArray[np.int64]) -> None:
    """Replace the profile's schedule by the legal schedule `runs`; O(runs + reads + slots)."""
    num_ops = packed.time_s.size - 2
    ids = profile.run.shape[0]
    profile.slot_run[:] = -1
    profile.run[:, OP] = -1
    profile.run[:, KEPT] = 0
    profile.ends[:, FIRST] = -1
    profile.ends[:, LAST] = -1
    profile.counts[NUM_EDITS] = 0
    profile.counts[NUM_EXTRA] = 0
    total = 0.0
    for i in range(-1, runs.size + 1):
        # The first virtual op gets the last id, because it may write more tensors than any other.
        run = ids - 1 if i < 0 else i
        op = num_ops if i < 0 else (runs[i] if i < runs.size else num_ops + 1)
        profile.run[run, OP] = op
        profile.slot_run[i + 1] = run
        profile.run[run, SLOT] = i + 1
        before = profile.ends[op, LAST]
        profile.run[run, PREV] = before
        profile.run[run, NEXT] = -1
        profile.ends[op, LAST] = run
        if before >= 0:
            profile.run[before, NEXT] = run
            _add_extra(profile, run)
        else:
            profile.ends[op, FIRST] = run
        out = first_out(profile, run)
        for k in range(packed.op[op + 1, WRITES] - packed.op[op, WRITES]):
            profile.end_of[out + k] = run
        total += packed.time_s[op]
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            tensor = packed.flat[r]
            source = profile.ends[packed.tensor[tensor, PRODUCER], LAST]
            at = first_out(profile, source) + packed.tensor[tensor, NTH]
            if profile.end_of[at] == source and packed.tensor[tensor, UNBUILT]:
                profile.run[source, KEPT] += 1
            profile.end_of[at] = run
    num_spare = 0
    for run in range(ids - 2, runs.size, -1):
        profile.run[num_spare, SPARE] = run
        num_spare += 1
    profile.counts[NUM_SPARE] = num_spare
    profile.total_s[0] = total
    rebuild(packed, profile)


@kernel(PACKED_GRAPH, PROFILE, INTS)
def store_runs(packed: PackedGraph, profile: Profile, runs: NDArray[np.int64]) -> int:
    """Write the schedule into `runs`; returns the number of runs."""
    num_ops = packed.time_s.size - 2
    count = 0
    for run in profile.slot_run:
        if run >= 0 and profile.run[run, OP] < num_ops:
            runs[count] = profile.run[run, OP]
            count += 1
    profile.counts[WORK] += profile.counts[NUM_SLOTS] // 16
    return count


@kernel(PROFILE, INT)
def _value(profile: Profile, slot: int) -> int:
    """The value that the tree holds for `slot`."""
    node = slot + profile.counts[NUM_SLOTS]
    value = profile.tree[node, LARGEST]
    while node > 1:
        node >>= 1
        value += profile.tree[node, ADDED]
    return int(value)


@kernel(PACKED_GRAPH, PROFILE, INT)
def _shift_left(packed: PackedGraph, profile: Profile, slot: int) -> None:
    """Move the run in `slot` one slot to the left, which is empty; O(reads and writes)."""
    run = profile.slot_run[slot]
    op = profile.run[run, OP]
    empty_value, value = _value(profile, slot - 1), _value(profile, slot)
    # Left behind is a slot after the run: without its workspace and what ended there.
    after = value
    if op < packed.time_s.size - 2:
        after -= _EMPTY + packed.op[op, WORKSPACE]
        if profile.run[run, KEPT] > 0:
            after -= packed.op[op, SAVING]
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] == run:
            after += _shared(packed, op, tensor) - packed.tensor[tensor, SIZE]
    out = first_out(profile, run)
    for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
        tensor = packed.flat[w]
        if profile.end_of[out] == run and not packed.tensor[tensor, UNBUILT]:
            after -= packed.tensor[tensor, SIZE]
        out += 1
    profile.slot_run[slot] = -1
    profile.slot_run[slot - 1] = run
    profile.run[run, SLOT] = slot - 1
    add_range(profile, slot - 1, slot - 1, value - empty_value)
    add_range(profile, slot, slot, after - value)


@kernel(PACKED_GRAPH, PROFILE, INT)
def _slot_before(packed: PackedGraph, profile: Profile, follower: int) -> int:
    """An empty slot between the run `follower` and the one before it; makes room where needed."""
    slot_run = profile.slot_run
    right = profile.run[follower, SLOT]
    left = right - 1
    while slot_run[left] < 0:
        left -= 1
    if left + 1 == right:
        empty = left - 1
        while empty > max(0, left - 128) and slot_run[empty] >= 0:
            empty -= 1
        if empty > 0 and slot_run[empty] < 0:
            for slot in range(empty + 1, right):
                _shift_left(packed, profile, slot)
            return int(left)
        rebuild(packed, profile)
        right = profile.run[follower, SLOT]
        left = right - 1
        while slot_run[left] < 0:
            left -= 1
    return int((left + right) // 2)


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def _insert(packed: PackedGraph, profile: Profile, op: int, follower: int) -> int:
    slot = _slot_before(packed, profile, follower)
    slot_run = profile.slot_run
    count = profile.counts[NUM_SPARE] - 1
    profile.counts[NUM_SPARE] = count
    run = profile.run[count, SPARE]
    slot_run[slot] = run
    profile.run[run, SLOT] = slot
    profile.run[run, OP] = op
    profile.run[run, KEPT] = 0
    profile.total_s[0] += packed.time_s[op]
    add_range(profile, slot, slot, _EMPTY + packed.op[op, WORKSPACE])

    before = run_before(profile, op, slot)
    after = profile.run[before, NEXT] if before >= 0 else profile.ends[op, FIRST]
    profile.run[run, PREV] = before
    profile.run[run, NEXT] = after
    if after >= 0:
        profile.run[after, PREV] = run
    else:
        profile.ends[op, LAST] = run
    if before >= 0:
        profile.run[before, NEXT] = run
        _add_extra(profile, run)
    else:
        profile.ends[op, FIRST] = run
        if after >= 0:
            _add_extra(profile, after)

    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        end = profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]]
        if profile.run[end, SLOT] < slot:
            _set_end(packed, profile, source, tensor, run)
    out = first_out(profile, run)
    for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
        tensor = packed.flat[w]
        profile.end_of[out] = run
        out += 1
        if not packed.tensor[tensor, UNBUILT]:
            add_range(profile, slot, slot, packed.tensor[tensor, SIZE])
        if before >= 0:
            end = profile.end_of[first_out(profile, before) + packed.tensor[tensor, NTH]]
            if profile.run[end, SLOT] < slot:
                continue  # the run before was not read after this slot
            earlier = last_read(packed, profile, tensor, profile.run[before, SLOT], slot)
            _set_end(packed, profile, before, tensor, earlier if earlier >= 0 else before)
            _set_end(packed, profile, run, tensor, end)
        else:
            limit = profile.run[after, SLOT] if after >= 0 else profile.counts[NUM_SLOTS]
            end = last_read(packed, profile, tensor, slot, limit)
            if end >= 0:
                _set_end(packed, profile, run, tensor, end)
    return int(run)


@kernel(PACKED_GRAPH, PROFILE, INT)
def _remove(packed: PackedGraph, profile: Profile, run: int) -> int:
    """Remove `run`; returns its op and the run that followed, which are enough to undo this."""
    slot_run = profile.slot_run
    slot, op = profile.run[run, SLOT], profile.run[run, OP]
    before, after = profile.run[run, PREV], profile.run[run, NEXT]
    out = first_out(profile, run)
    for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
        tensor = packed.flat[w]
        end = profile.end_of[out]
        out += 1
        if end != run:
            _set_end(packed, profile, run, tensor, run)
            _set_end(packed, profile, before, tensor, end)
        if not packed.tensor[tensor, UNBUILT]:
            add_range(profile, slot, slot, -packed.tensor[tensor, SIZE])
    # The run is unlinked before the inputs' last reads are looked for.
    if before >= 0:
        profile.run[before, NEXT] = after
        _drop_extra(profile, run)
    else:
        profile.ends[op, FIRST] = after
        if after >= 0:
            _drop_extra(profile, after)
    if after >= 0:
        profile.run[after, PREV] = before
    else:
        profile.ends[op, LAST] = before
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] == run:
            end = last_read(packed, profile, tensor, profile.run[source, SLOT], slot)
            _set_end(packed, profile, source, tensor, end if end >= 0 else source)
    add_range(profile, slot, slot, -_EMPTY - packed.op[op, WORKSPACE])
    slot_run[slot] = -1
    profile.total_s[0] -= packed.time_s[op]
    profile.run[profile.counts[NUM_SPARE], SPARE] = run
    profile.counts[NUM_SPARE] += 1
    profile.run[run, OP] = -1
    follower = slot + 1
    while slot_run[follower] < 0:
        follower += 1
    return int(slot_run[follower])


@kernel(PROFILE)
def can_edit(profile: Profile) -> bool:
    """Whether there is room for one more run, and for one more edit in the journal."""
    return bool(
        profile.counts[NUM_SPARE] > 0 and profile.counts[NUM_EDITS] < profile.journal.shape[0]
    )


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def insert_run(packed: PackedGraph, profile: Profile, op: int, follower: int) -> int:
    """Run `op` just before the run `follower`, where its inputs exist; returns the new run.

    O(reads and writes of the op, times runs of their readers, times log slots).
    """
    run = _insert(packed, profile, op, follower)
    at = profile.counts[NUM_EDITS]
    profile.journal[at, 0] = INSERTED
    profile.journal[at, 1] = run
    profile.counts[NUM_EDITS] = at + 1
    return run


@kernel(PACKED_GRAPH, PROFILE, INT)
def remove_run(packed: PackedGraph, profile: Profile, run: int) -> None:
    """Remove a run; a run of the same op must stand before it, or nothing may read from it."""
    op = profile.run[run, OP]
    follower = _remove(packed, profile, run)
    at = profile.counts[NUM_EDITS]
    profile.journal[at, 0] = REMOVED
    profile.journal[at, 1] = op
    profile.journal[at, 2] = follower
    profile.counts[NUM_EDITS] = at + 1


@kernel(PACKED_GRAPH, PROFILE, INT)
def undo_edits(packed: PackedGraph, profile: Profile, mark: int) -> None:
    """Undo all edits but the first `mark`, the last edit first: ids of runs are restored, too."""
    for at in range(profile.counts[NUM_EDITS] - 1, mark - 1, -1):
        if profile.journal[at, 0] == INSERTED:
            _remove(packed, profile, profile.journal[at, 1])
        else:
            _insert(packed, profile, profile.journal[at, 1], profile.journal[at, 2])
    profile.counts[NUM_EDITS] = mark


@kernel(PACKED_GRAPH, PROFILE, INT)
def is_unread(packed: PackedGraph, profile: Profile, run: int) -> bool:
    """Whether no run reads what `run` writes."""
    op, out = profile.run[run, OP], first_out(profile, run)
    for k in range(packed.op[op + 1, WRITES] - packed.op[op, WRITES]):
        if profile.end_of[out + k] != run:
            return False
    return True
