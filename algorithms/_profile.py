"""The live-memory profile of a schedule under edits: runs come and go, the peak stays known.

A schedule is a line of runs, each in a numbered slot with gaps between. Live bytes per slot lie in
a tree that adds to a range and finds the largest in O(log slots), so that inserting or removing a
run costs as many range updates as the op reads and writes tensors. Lifetimes follow the rule of the
simulator to the byte: optional outputs, storage taken over in place and both workspaces included.

Two virtual ops make ends of the line ordinary: one before everything writes the graph's inputs, one
after everything reads its results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from schedsim._arrays import GraphArrays

# Added to an empty slot, so that it is never the largest; far above any sum of sizes.
_EMPTY = 1 << 60

# Entries of `Profile.counts`.
NUM_SPARE, NUM_EDITS, NUM_SLOTS, NUM_EXTRA, NUM_REBUILDS, PER_RUN = range(6)

# Kinds of edits in the journal.
INSERTED, REMOVED = 0, 1


class Steps(NamedTuple):
    """A graph for the kernels: that of `GraphArrays` and the two virtual ops, n and n + 1."""

    time_s: NDArray[np.float64]
    workspace: NDArray[np.int64]
    saving_extra: NDArray[np.int64]  # workspace of a run that keeps an optional output, less that
    fixed: NDArray[np.bool_]  # runs once: `once` ops and the virtual ones
    read_start: NDArray[np.int64]
    read_tensor: NDArray[np.int64]
    write_start: NDArray[np.int64]
    write_tensor: NDArray[np.int64]
    producer: NDArray[np.int64]
    nth: NDArray[np.int64]  # place of a tensor among its producer's outputs
    size: NDArray[np.int64]
    unbuilt: NDArray[np.bool_]  # not materialised where nobody reads it
    reader_start: NDArray[np.int64]
    reader_op: NDArray[np.int64]
    share_start: NDArray[np.int64]  # of ops: inputs whose storage an output takes over
    share_tensor: NDArray[np.int64]
    share_bytes: NDArray[np.int64]


class Profile(NamedTuple):
    """A schedule with its lifetimes and live bytes; every array is changed in place."""

    slot_run: NDArray[np.int32]  # run in a slot, -1 for none
    op_of: NDArray[np.int32]
    slot_of: NDArray[np.int32]
    next_same: NDArray[np.int32]  # next run of the same op, -1 for none
    prev_same: NDArray[np.int32]
    end_of: NDArray[np.int32]  # per run and output: the run that reads the instance last, or itself
    num_kept: NDArray[np.int32]  # optional outputs that somebody reads
    first_of: NDArray[np.int32]  # per op
    last_of: NDArray[np.int32]
    spare: NDArray[np.int32]  # ids of runs not in use, a stack
    extra: NDArray[np.int32]  # runs beyond the first of their op, in no order
    extra_at: NDArray[np.int32]
    tree_max: NDArray[np.int64]
    tree_add: NDArray[np.int64]
    journal: NDArray[np.int32]  # (edits, 3): kind, run or op, run that follows
    counts: NDArray[np.int64]
    total_s: NDArray[np.float64]
    scratch: NDArray[np.int32]  # (4, any): stacks of the moves
    random: NDArray[np.uint64]


def make_steps(arrays: GraphArrays) -> Steps:
    """`arrays` with the two virtual ops; O(ops + reads)."""
    num_ops, num_tensors = arrays.op_time_s.size, arrays.tensor_bytes.size
    inputs = np.flatnonzero(arrays.tensor_producer < 0)
    results = np.flatnonzero(arrays.tensor_result)
    read_start = np.concatenate(
        [arrays.read_start, arrays.read_start[-1:], arrays.read_start[-1:] + results.size]
    )
    read_tensor = np.concatenate([arrays.read_tensor, results])
    write_start = np.concatenate(
        [
            arrays.write_start,
            arrays.write_start[-1:] + inputs.size,
            arrays.write_start[-1:] + inputs.size,
        ]
    )
    write_tensor = np.concatenate([arrays.write_tensor, inputs])
    producer = np.where(arrays.tensor_producer < 0, num_ops, arrays.tensor_producer)
    nth = np.zeros(num_tensors, np.int64)
    for op in range(num_ops + 2):
        mine = write_tensor[write_start[op] : write_start[op + 1]]
        nth[mine] = np.arange(mine.size)
    reader = np.repeat(np.arange(num_ops + 2), np.diff(read_start))
    by_tensor = np.argsort(read_tensor, kind="stable")
    reader_start = np.zeros(num_tensors + 1, np.int64)
    np.cumsum(np.bincount(read_tensor, minlength=num_tensors), out=reader_start[1:])

    # An output that is not always materialised is not counted on to save its input's bytes.
    takers = np.flatnonzero((arrays.tensor_takes_over >= 0) & ~arrays.tensor_optional)
    takers = takers[np.argsort(producer[takers], kind="stable")]
    share_start = np.zeros(num_ops + 3, np.int64)
    np.cumsum(np.bincount(producer[takers], minlength=num_ops + 2), out=share_start[1:])
    sources = arrays.tensor_takes_over[takers]
    zeros = np.zeros(2, np.int64)
    return Steps(
        time_s=np.concatenate([arrays.op_time_s, np.zeros(2)]),
        workspace=np.concatenate([arrays.op_workspace_bytes, zeros]),
        saving_extra=np.concatenate(
            [arrays.op_saving_workspace_bytes - arrays.op_workspace_bytes, zeros]
        ),
        fixed=np.concatenate([arrays.op_once, np.ones(2, np.bool_)]),
        read_start=read_start,
        read_tensor=read_tensor,
        write_start=write_start,
        write_tensor=write_tensor,
        producer=producer,
        nth=nth,
        size=arrays.tensor_bytes.copy(),
        unbuilt=arrays.tensor_optional | (arrays.tensor_producer < 0),
        reader_start=reader_start,
        reader_op=reader[by_tensor],
        share_start=share_start,
        share_tensor=sources,
        share_bytes=np.minimum(arrays.tensor_bytes[takers], arrays.tensor_bytes[sources]),
    )


def make_profile(steps: Steps, runs: NDArray[Any], *, seed: int = 0, room: float = 8.0) -> Profile:
    """The profile of the schedule `runs`, which must be legal; room for `room` times the ops."""
    num_ops = steps.time_s.size - 2
    num_slots = 1 << max(6, int(np.ceil(np.log2(max(room * num_ops, 3.0 * runs.size)))))
    num_runs = num_slots // 2
    outputs = np.diff(steps.write_start)
    per_run = max(1, int(outputs[:num_ops].max(initial=0)))
    most_reads = int(np.diff(steps.read_start).max(initial=0))
    profile = Profile(
        slot_run=np.full(num_slots, -1, np.int32),
        op_of=np.full(num_runs, -1, np.int32),
        slot_of=np.full(num_runs, -1, np.int32),
        next_same=np.full(num_runs, -1, np.int32),
        prev_same=np.full(num_runs, -1, np.int32),
        end_of=np.full((num_runs - 1) * per_run + max(per_run, int(outputs[num_ops])), -1, np.int32),
        num_kept=np.zeros(num_runs, np.int32),
        first_of=np.full(num_ops + 2, -1, np.int32),
        last_of=np.full(num_ops + 2, -1, np.int32),
        spare=np.zeros(num_runs, np.int32),
        extra=np.zeros(num_runs, np.int32),
        extra_at=np.full(num_runs, -1, np.int32),
        tree_max=np.zeros(2 * num_slots, np.int64),
        tree_add=np.zeros(2 * num_slots, np.int64),
        journal=np.zeros((65536, 3), np.int32),
        counts=np.zeros(8, np.int64),
        total_s=np.zeros(1),
        scratch=np.zeros((4, 64 * most_reads + 1024), np.int32),
        random=np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64], np.uint64),
    )
    profile.counts[NUM_SLOTS], profile.counts[PER_RUN] = num_slots, per_run
    load_runs(steps, profile, runs.astype(np.int32))
    return profile


@njit(cache=True, nogil=True)
def random_unit(profile: Profile) -> float:
    """A random number in [0, 1); xorshift64* (Vigna 2016)."""
    x = profile.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    profile.random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def add_range(profile: Profile, low: int, high: int, change: int) -> None:
    """Add `change` to the slots low..high, both included."""
    tree_max, tree_add = profile.tree_max, profile.tree_add
    num_slots = profile.counts[NUM_SLOTS]
    left, right = low + num_slots - 1, high + num_slots + 1
    while left ^ right ^ 1:
        if not left & 1:
            tree_max[left ^ 1] += change
            tree_add[left ^ 1] += change
        if right & 1:
            tree_max[right ^ 1] += change
            tree_add[right ^ 1] += change
        left >>= 1
        right >>= 1
        tree_max[left] = max(tree_max[2 * left], tree_max[2 * left + 1]) + tree_add[left]
        tree_max[right] = max(tree_max[2 * right], tree_max[2 * right + 1]) + tree_add[right]
    while left > 1:
        left >>= 1
        tree_max[left] = max(tree_max[2 * left], tree_max[2 * left + 1]) + tree_add[left]


@njit(cache=True, nogil=True)
def max_range(profile: Profile, low: int, high: int) -> int:
    """The largest of the slots low..high; below zero where all of them are empty."""
    if low > high:
        return -_EMPTY
    tree_max, tree_add = profile.tree_max, profile.tree_add
    num_slots = profile.counts[NUM_SLOTS]
    left, right = low + num_slots - 1, high + num_slots + 1
    of_left = of_right = -2 * _EMPTY
    while left ^ right ^ 1:
        if not left & 1:
            of_left = max(of_left, tree_max[left ^ 1])
        if right & 1:
            of_right = max(of_right, tree_max[right ^ 1])
        left >>= 1
        right >>= 1
        of_left += tree_add[left]
        of_right += tree_add[right]
    largest = max(of_left, of_right)
    while left > 1:
        left >>= 1
        largest += tree_add[left]
    return int(largest)


@njit(cache=True, nogil=True)
def peak_slot(profile: Profile) -> int:
    """The first slot at which live bytes are largest."""
    tree_max, num_slots = profile.tree_max, profile.counts[NUM_SLOTS]
    node = 1
    while node < num_slots:
        node *= 2
        if tree_max[node + 1] > tree_max[node]:
            node += 1
    return int(node - num_slots)


@njit(cache=True, nogil=True)
def first_out(profile: Profile, run: int) -> int:
    """Where the instances of `run` stand in `end_of`."""
    return int(run * profile.counts[PER_RUN])


@njit(cache=True, nogil=True)
def run_before(profile: Profile, op: int, slot: int) -> int:
    """The last run of `op` before `slot`, or -1."""
    run = profile.last_of[op]
    while run >= 0 and profile.slot_of[run] >= slot:
        run = profile.prev_same[run]
    return int(run)


@njit(cache=True, nogil=True)
def last_read(steps: Steps, profile: Profile, tensor: int, after: int, before: int) -> int:
    """The last run between two slots, both excluded, that reads `tensor`; or -1."""
    best = -1
    for i in range(steps.reader_start[tensor], steps.reader_start[tensor + 1]):
        run = run_before(profile, steps.reader_op[i], before)
        if run >= 0 and profile.slot_of[run] > after:
            after = profile.slot_of[run]
            best = run
    return best


@njit(cache=True, nogil=True)
def next_read(steps: Steps, profile: Profile, tensor: int, after: int) -> int:
    """The first run after a slot that reads `tensor`, or -1."""
    best, best_slot = -1, profile.counts[NUM_SLOTS]
    for i in range(steps.reader_start[tensor], steps.reader_start[tensor + 1]):
        run = profile.last_of[steps.reader_op[i]]
        while run >= 0 and profile.slot_of[run] > after:
            if profile.slot_of[run] < best_slot:
                best, best_slot = run, profile.slot_of[run]
            run = profile.prev_same[run]
    return int(best)


@njit(cache=True, nogil=True)
def _shared(steps: Steps, op: int, tensor: int) -> int:
    """Bytes that a run of `op` saves where it is the last to read `tensor`."""
    for i in range(steps.share_start[op], steps.share_start[op + 1]):
        if steps.share_tensor[i] == tensor:
            return int(steps.share_bytes[i])
    return 0


@njit(cache=True, nogil=True)
def _set_end(steps: Steps, profile: Profile, run: int, tensor: int, end: int) -> None:
    """Let the instance of `tensor` that `run` writes live to the run `end`."""
    at = first_out(profile, run) + steps.nth[tensor]
    old = profile.end_of[at]
    if old == end:
        return
    profile.end_of[at] = end
    slot_of, size = profile.slot_of, steps.size[tensor]
    if old != run:
        shared = _shared(steps, profile.op_of[old], tensor)
        if shared:
            add_range(profile, slot_of[old], slot_of[old], shared)
    if end != run:
        shared = _shared(steps, profile.op_of[end], tensor)
        if shared:
            add_range(profile, slot_of[end], slot_of[end], -shared)
    was, will = slot_of[old], slot_of[end]
    if steps.unbuilt[tensor]:  # nothing is charged until somebody reads it
        extra = steps.saving_extra[profile.op_of[run]]
        if old == run:
            was -= 1
            profile.num_kept[run] += 1
            if profile.num_kept[run] == 1 and extra:
                add_range(profile, slot_of[run], slot_of[run], extra)
        elif end == run:
            will -= 1
            profile.num_kept[run] -= 1
            if profile.num_kept[run] == 0 and extra:
                add_range(profile, slot_of[run], slot_of[run], -extra)
    if will > was:
        add_range(profile, was + 1, will, size)
    else:
        add_range(profile, will + 1, was, -size)


@njit(cache=True, nogil=True)
def rebuild(steps: Steps, profile: Profile) -> None:
    """Spread the runs evenly over the slots and sum live bytes anew; O(runs + slots)."""
    num_slots = profile.counts[NUM_SLOTS]
    slot_run, slot_of, op_of = profile.slot_run, profile.slot_of, profile.op_of
    line = np.empty(num_slots, np.int32)
    num_runs = 0
    for slot in range(num_slots):
        if slot_run[slot] >= 0:
            line[num_runs] = slot_run[slot]
            num_runs += 1
            slot_run[slot] = -1
    for i in range(num_runs):
        slot = 1 + i * (num_slots - 3) // (num_runs - 1)
        slot_run[slot] = line[i]
        slot_of[line[i]] = slot
    live = np.zeros(num_slots + 1, np.int64)
    tree_max, tree_add = profile.tree_max, profile.tree_add
    for i in range(num_runs):
        run = line[i]
        op, slot = op_of[run], slot_of[run]
        out = first_out(profile, run)
        for w in range(steps.write_start[op], steps.write_start[op + 1]):
            tensor = steps.write_tensor[w]
            end = profile.end_of[out]
            out += 1
            if end == run and steps.unbuilt[tensor]:
                continue
            live[slot] += steps.size[tensor]
            live[slot_of[end] + 1] -= steps.size[tensor]
            if end != run:
                shared = _shared(steps, op_of[end], tensor)
                live[slot_of[end]] -= shared
                live[slot_of[end] + 1] += shared
    total = 0
    for slot in range(num_slots):
        total += live[slot]
        run, value = slot_run[slot], total - _EMPTY
        if run >= 0 and op_of[run] < steps.time_s.size - 2:
            value = total + steps.workspace[op_of[run]]
            if profile.num_kept[run] > 0:
                value += steps.saving_extra[op_of[run]]
        tree_max[num_slots + slot] = value
        tree_add[num_slots + slot] = 0
    for node in range(num_slots - 1, 0, -1):
        tree_max[node] = max(tree_max[2 * node], tree_max[2 * node + 1])
        tree_add[node] = 0
    profile.counts[NUM_REBUILDS] += 1


@njit(cache=True, nogil=True)
def load_runs(steps: Steps, profile: Profile, runs: NDArray[np.int32]) -> None:
    """Forget everything and take up the legal schedule `runs`; O(runs + reads + slots)."""
    num_ops = steps.time_s.size - 2
    ids = profile.op_of.size
    profile.slot_run[:] = -1
    profile.op_of[:] = -1
    profile.num_kept[:] = 0
    profile.first_of[:] = -1
    profile.last_of[:] = -1
    profile.counts[NUM_EDITS] = 0
    profile.counts[NUM_EXTRA] = 0
    total = 0.0
    for i in range(-1, runs.size + 1):
        # The first virtual op takes the last id: it may write more tensors than any other.
        run = ids - 1 if i < 0 else i
        op = num_ops if i < 0 else (runs[i] if i < runs.size else num_ops + 1)
        profile.op_of[run] = op
        profile.slot_run[i + 1] = run
        profile.slot_of[run] = i + 1
        before = profile.last_of[op]
        profile.prev_same[run] = before
        profile.next_same[run] = -1
        profile.last_of[op] = run
        if before >= 0:
            profile.next_same[before] = run
            _add_extra(profile, run)
        else:
            profile.first_of[op] = run
        out = first_out(profile, run)
        for k in range(steps.write_start[op + 1] - steps.write_start[op]):
            profile.end_of[out + k] = run
        total += steps.time_s[op]
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            tensor = steps.read_tensor[r]
            source = profile.last_of[steps.producer[tensor]]
            at = first_out(profile, source) + steps.nth[tensor]
            if profile.end_of[at] == source and steps.unbuilt[tensor]:
                profile.num_kept[source] += 1
            profile.end_of[at] = run
    num_spare = 0
    for run in range(ids - 2, runs.size, -1):
        profile.spare[num_spare] = run
        num_spare += 1
    profile.counts[NUM_SPARE] = num_spare
    profile.total_s[0] = total
    rebuild(steps, profile)


@njit(cache=True, nogil=True)
def store_runs(steps: Steps, profile: Profile, runs: NDArray[np.int32]) -> int:
    """Write the schedule into `runs`; the number of its runs."""
    num_ops = steps.time_s.size - 2
    count = 0
    for run in profile.slot_run:
        if run >= 0 and profile.op_of[run] < num_ops:
            runs[count] = profile.op_of[run]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _add_extra(profile: Profile, run: int) -> None:
    count = profile.counts[NUM_EXTRA]
    profile.extra[count] = run
    profile.extra_at[run] = count
    profile.counts[NUM_EXTRA] = count + 1


@njit(cache=True, nogil=True)
def _drop_extra(profile: Profile, run: int) -> None:
    last = profile.counts[NUM_EXTRA] - 1
    moved = profile.extra[last]
    profile.extra[profile.extra_at[run]] = moved
    profile.extra_at[moved] = profile.extra_at[run]
    profile.extra_at[run] = -1
    profile.counts[NUM_EXTRA] = last


@njit(cache=True, nogil=True)
def _value(profile: Profile, slot: int) -> int:
    """What the tree holds for `slot`."""
    node = slot + profile.counts[NUM_SLOTS]
    value = profile.tree_max[node]
    while node > 1:
        node >>= 1
        value += profile.tree_add[node]
    return int(value)


@njit(cache=True, nogil=True)
def _shift_left(steps: Steps, profile: Profile, slot: int) -> None:
    """Move the run in `slot` one to the left, where there is nothing; O(reads and writes)."""
    run = profile.slot_run[slot]
    op = profile.op_of[run]
    empty_value, value = _value(profile, slot - 1), _value(profile, slot)
    # Left behind is a slot after the run: without its workspace and what ended there.
    after = value
    if op < steps.time_s.size - 2:
        after -= _EMPTY + steps.workspace[op]
        if profile.num_kept[run] > 0:
            after -= steps.saving_extra[op]
    for r in range(steps.read_start[op], steps.read_start[op + 1]):
        tensor = steps.read_tensor[r]
        source = run_before(profile, steps.producer[tensor], slot)
        if profile.end_of[first_out(profile, source) + steps.nth[tensor]] == run:
            after += _shared(steps, op, tensor) - steps.size[tensor]
    out = first_out(profile, run)
    for w in range(steps.write_start[op], steps.write_start[op + 1]):
        tensor = steps.write_tensor[w]
        if profile.end_of[out] == run and not steps.unbuilt[tensor]:
            after -= steps.size[tensor]
        out += 1
    profile.slot_run[slot] = -1
    profile.slot_run[slot - 1] = run
    profile.slot_of[run] = slot - 1
    add_range(profile, slot - 1, slot - 1, value - empty_value)
    add_range(profile, slot, slot, after - value)


@njit(cache=True, nogil=True)
def _slot_before(steps: Steps, profile: Profile, follower: int) -> int:
    """An empty slot between the run `follower` and the one before it; makes room where needed."""
    slot_run = profile.slot_run
    right = profile.slot_of[follower]
    left = right - 1
    while slot_run[left] < 0:
        left -= 1
    if left + 1 == right:
        empty = left - 1
        while empty > max(0, left - 128) and slot_run[empty] >= 0:
            empty -= 1
        if empty > 0 and slot_run[empty] < 0:
            for slot in range(empty + 1, right):
                _shift_left(steps, profile, slot)
            return int(left)
        rebuild(steps, profile)
        right = profile.slot_of[follower]
        left = right - 1
        while slot_run[left] < 0:
            left -= 1
    return int((left + right) // 2)


@njit(cache=True, nogil=True)
def _insert(steps: Steps, profile: Profile, op: int, follower: int) -> int:
    slot = _slot_before(steps, profile, follower)
    slot_run, slot_of = profile.slot_run, profile.slot_of
    count = profile.counts[NUM_SPARE] - 1
    profile.counts[NUM_SPARE] = count
    run = profile.spare[count]
    slot_run[slot] = run
    slot_of[run] = slot
    profile.op_of[run] = op
    profile.num_kept[run] = 0
    profile.total_s[0] += steps.time_s[op]
    add_range(profile, slot, slot, _EMPTY + steps.workspace[op])

    before = run_before(profile, op, slot)
    after = profile.next_same[before] if before >= 0 else profile.first_of[op]
    profile.prev_same[run] = before
    profile.next_same[run] = after
    if after >= 0:
        profile.prev_same[after] = run
    else:
        profile.last_of[op] = run
    if before >= 0:
        profile.next_same[before] = run
        _add_extra(profile, run)
    else:
        profile.first_of[op] = run
        if after >= 0:
            _add_extra(profile, after)

    for r in range(steps.read_start[op], steps.read_start[op + 1]):
        tensor = steps.read_tensor[r]
        source = run_before(profile, steps.producer[tensor], slot)
        end = profile.end_of[first_out(profile, source) + steps.nth[tensor]]
        if slot_of[end] < slot:
            _set_end(steps, profile, source, tensor, run)
    out = first_out(profile, run)
    for w in range(steps.write_start[op], steps.write_start[op + 1]):
        tensor = steps.write_tensor[w]
        profile.end_of[out] = run
        out += 1
        if not steps.unbuilt[tensor]:
            add_range(profile, slot, slot, steps.size[tensor])
        if before >= 0:
            end = profile.end_of[first_out(profile, before) + steps.nth[tensor]]
            if slot_of[end] < slot:
                continue  # the run before was not read after this slot
            earlier = last_read(steps, profile, tensor, slot_of[before], slot)
            _set_end(steps, profile, before, tensor, earlier if earlier >= 0 else before)
            _set_end(steps, profile, run, tensor, end)
        else:
            limit = slot_of[after] if after >= 0 else profile.counts[NUM_SLOTS]
            end = last_read(steps, profile, tensor, slot, limit)
            if end >= 0:
                _set_end(steps, profile, run, tensor, end)
    return int(run)


@njit(cache=True, nogil=True)
def _remove(steps: Steps, profile: Profile, run: int) -> int:
    """The op of the run, and the run that followed it, are what brings it back."""
    slot_run, slot_of = profile.slot_run, profile.slot_of
    slot, op = slot_of[run], profile.op_of[run]
    before, after = profile.prev_same[run], profile.next_same[run]
    out = first_out(profile, run)
    for w in range(steps.write_start[op], steps.write_start[op + 1]):
        tensor = steps.write_tensor[w]
        end = profile.end_of[out]
        out += 1
        if end != run:
            _set_end(steps, profile, run, tensor, run)
            _set_end(steps, profile, before, tensor, end)
        if not steps.unbuilt[tensor]:
            add_range(profile, slot, slot, -steps.size[tensor])
    # Unlinked before the inputs' last reads are looked for.
    if before >= 0:
        profile.next_same[before] = after
        _drop_extra(profile, run)
    else:
        profile.first_of[op] = after
        if after >= 0:
            _drop_extra(profile, after)
    if after >= 0:
        profile.prev_same[after] = before
    else:
        profile.last_of[op] = before
    for r in range(steps.read_start[op], steps.read_start[op + 1]):
        tensor = steps.read_tensor[r]
        source = run_before(profile, steps.producer[tensor], slot)
        if profile.end_of[first_out(profile, source) + steps.nth[tensor]] == run:
            end = last_read(steps, profile, tensor, slot_of[source], slot)
            _set_end(steps, profile, source, tensor, end if end >= 0 else source)
    add_range(profile, slot, slot, -_EMPTY - steps.workspace[op])
    slot_run[slot] = -1
    profile.total_s[0] -= steps.time_s[op]
    profile.spare[profile.counts[NUM_SPARE]] = run
    profile.counts[NUM_SPARE] += 1
    profile.op_of[run] = -1
    follower = slot + 1
    while slot_run[follower] < 0:
        follower += 1
    return int(slot_run[follower])


@njit(cache=True, nogil=True)
def can_edit(profile: Profile) -> bool:
    """Whether there is room for one more run, and for one more edit in the journal."""
    return bool(
        profile.counts[NUM_SPARE] > 0 and profile.counts[NUM_EDITS] < profile.journal.shape[0]
    )


@njit(cache=True, nogil=True)
def insert_run(steps: Steps, profile: Profile, op: int, follower: int) -> int:
    """Run `op` just before the run `follower`; its inputs must have been made before. The run.

    O(reads and writes of the op, times runs of their readers, times log slots).
    """
    run = _insert(steps, profile, op, follower)
    at = profile.counts[NUM_EDITS]
    profile.journal[at, 0] = INSERTED
    profile.journal[at, 1] = run
    profile.counts[NUM_EDITS] = at + 1
    return run


@njit(cache=True, nogil=True)
def remove_run(steps: Steps, profile: Profile, run: int) -> None:
    """Take a run out; one of the same op must stand before it, or nobody may read from it."""
    op = profile.op_of[run]
    follower = _remove(steps, profile, run)
    at = profile.counts[NUM_EDITS]
    profile.journal[at, 0] = REMOVED
    profile.journal[at, 1] = op
    profile.journal[at, 2] = follower
    profile.counts[NUM_EDITS] = at + 1


@njit(cache=True, nogil=True)
def undo_edits(steps: Steps, profile: Profile, mark: int) -> None:
    """Take back all edits but the first `mark`, the last first: ids of runs come back too."""
    for at in range(profile.counts[NUM_EDITS] - 1, mark - 1, -1):
        if profile.journal[at, 0] == INSERTED:
            _remove(steps, profile, profile.journal[at, 1])
        else:
            _insert(steps, profile, profile.journal[at, 1], profile.journal[at, 2])
    profile.counts[NUM_EDITS] = mark


@njit(cache=True, nogil=True)
def is_unread(steps: Steps, profile: Profile, run: int) -> bool:
    """Whether nobody reads what `run` writes."""
    op, out = profile.op_of[run], first_out(profile, run)
    for k in range(steps.write_start[op + 1] - steps.write_start[op]):
        if profile.end_of[out + k] != run:
            return False
    return True
