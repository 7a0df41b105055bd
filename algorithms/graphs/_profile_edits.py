"""Runs come and go in a live-memory profile, and edits are taken back."""

from __future__ import annotations

from schedsim.kernels.compiled import kernel_for as kernel

from ._last_reads import first_out, last_read, run_before, set_end, shared_bytes
from ._live_bytes import EMPTY, add_range, value_at
from ._memory_profile import add_extra, forget_extra, rebuild
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
    FIRST,
    INT,
    KEPT,
    LAST,
    NEXT,
    NUM_EDITS,
    NUM_SLOTS,
    NUM_SPARE,
    OP,
    PREV,
    PROFILE,
    SLOT,
    SPARE,
    Profile,
)

# Kinds of edits in the journal.
INSERTED, REMOVED = 0, 1


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
    add_range(profile, slot, slot, EMPTY + packed.op[op, WORKSPACE])

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
        add_extra(profile, run)
    else:
        profile.ends[op, FIRST] = run
        if after >= 0:
            add_extra(profile, after)

    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        end = profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]]
        if profile.run[end, SLOT] < slot:
            set_end(packed, profile, source, tensor, run)
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
            set_end(packed, profile, before, tensor, earlier if earlier >= 0 else before)
            set_end(packed, profile, run, tensor, end)
        else:
            limit = profile.run[after, SLOT] if after >= 0 else profile.counts[NUM_SLOTS]
            end = last_read(packed, profile, tensor, slot, limit)
            if end >= 0:
                set_end(packed, profile, run, tensor, end)
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
            set_end(packed, profile, run, tensor, run)
            set_end(packed, profile, before, tensor, end)
        if not packed.tensor[tensor, UNBUILT]:
            add_range(profile, slot, slot, -packed.tensor[tensor, SIZE])
    # The run is unlinked before the inputs' last reads are looked for.
    if before >= 0:
        profile.run[before, NEXT] = after
        forget_extra(profile, run)
    else:
        profile.ends[op, FIRST] = after
        if after >= 0:
            forget_extra(profile, after)
    if after >= 0:
        profile.run[after, PREV] = before
    else:
        profile.ends[op, LAST] = before
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] == run:
            end = last_read(packed, profile, tensor, profile.run[source, SLOT], slot)
            set_end(packed, profile, source, tensor, end if end >= 0 else source)
    add_range(profile, slot, slot, -EMPTY - packed.op[op, WORKSPACE])
    slot_run[slot] = -1
    profile.total_s[0] -= packed.time_s[op]
    profile.run[profile.counts[NUM_SPARE], SPARE] = run
    profile.counts[NUM_SPARE] += 1
    profile.run[run, OP] = -1
    follower = slot + 1
    while slot_run[follower] < 0:
        follower += 1
    return int(slot_run[follower])


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


@kernel(PACKED_GRAPH, PROFILE, INT)
def _shift_left(packed: PackedGraph, profile: Profile, slot: int) -> None:
    """Move the run in `slot` one slot to the left, which is empty; O(reads and writes)."""
    run = profile.slot_run[slot]
    op = profile.run[run, OP]
    empty_value, value = value_at(profile, slot - 1), value_at(profile, slot)
    # Left behind is a slot after the run: without its workspace and what ended there.
    after = value
    if op < packed.time_s.size - 2:
        after -= EMPTY + packed.op[op, WORKSPACE]
        if profile.run[run, KEPT] > 0:
            after -= packed.op[op, SAVING]
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] == run:
            after += shared_bytes(packed, op, tensor) - packed.tensor[tensor, SIZE]
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
