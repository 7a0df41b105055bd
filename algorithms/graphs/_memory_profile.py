"""The live-memory profile of a schedule under edits: runs come and go, the peak stays known.

A schedule is a line of runs, each in a numbered slot, with gaps between them. Live bytes per slot
are kept in a tree (`_live_bytes`), so that inserting or removing a run (`_profile_edits`) costs as
many range updates as the op reads and writes tensors. Lifetimes (`_last_reads`) follow the rule of
the simulator to the byte: optional outputs, storage taken over in place and both workspaces are
included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._last_reads import first_out, shared_bytes
from ._live_bytes import EMPTY, sum_excess
from ._packed_graph import (
    NTH,
    PACKED_GRAPH,
    PRODUCER,
    READS,
    SAVING,
    SIZE,
    UNBUILT,
    WORKSPACE,
    WRITES,
    PackedGraph,
)
from ._profile_record import (
    ADDED,
    EXTRA,
    EXTRA_AT,
    FIRST,
    INT,
    INTS,
    KEPT,
    LARGEST,
    LAST,
    LIMIT,
    NEXT,
    NUM_EDITS,
    NUM_EXTRA,
    NUM_REBUILDS,
    NUM_SLOTS,
    NUM_SPARE,
    OP,
    PER_RUN,
    PREV,
    PROFILE,
    SLOT,
    SPARE,
    SUMMED,
    WORK,
    Profile,
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
        counts=np.zeros(10, np.int64),
        live=np.zeros(num_slots, np.int64),
        total_s=np.zeros(1),
        scratch=np.zeros((4, 64 * most_reads + 1024), np.int64),
        random=np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64], np.uint64),
        free=free,
    )
    profile.counts[NUM_SLOTS], profile.counts[PER_RUN] = num_slots, per_run
    load_runs(packed, profile, runs.astype(np.int64))
    return profile


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
            add_extra(profile, run)
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
                shared = shared_bytes(packed, profile.run[end, OP], tensor)
                live[profile.run[end, SLOT]] -= shared
                live[profile.run[end, SLOT] + 1] += shared
    total = 0
    for slot in range(num_slots):
        total += live[slot]
        run, value = slot_run[slot], total - EMPTY
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
    if profile.counts[SUMMED]:
        sum_excess(profile, profile.counts[LIMIT])
    profile.counts[NUM_REBUILDS] += 1
    profile.counts[WORK] += num_slots // 2


@kernel(PROFILE, INT)
def add_extra(profile: Profile, run: int) -> None:
    """Enter `run` in the list of extra runs."""
    count = profile.counts[NUM_EXTRA]
    profile.run[count, EXTRA] = run
    profile.run[run, EXTRA_AT] = count
    profile.counts[NUM_EXTRA] = count + 1


@kernel(PROFILE, INT)
def forget_extra(profile: Profile, run: int) -> None:
    """Take `run` off the list of extra runs."""
    last = profile.counts[NUM_EXTRA] - 1
    moved = profile.run[last, EXTRA]
    profile.run[profile.run[run, EXTRA_AT], EXTRA] = moved
    profile.run[moved, EXTRA_AT] = profile.run[run, EXTRA_AT]
    profile.run[run, EXTRA_AT] = -1
    profile.counts[NUM_EXTRA] = last
