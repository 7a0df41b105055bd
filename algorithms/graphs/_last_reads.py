"""Which run reads an instance last, to the byte as the simulator has it."""

from __future__ import annotations

from schedsim.kernels.compiled import kernel_for as kernel

from ._live_bytes import add_range
from ._packed_graph import (
    NTH,
    PACKED_GRAPH,
    READERS,
    SAVING,
    SHARES,
    SIZE,
    UNBUILT,
    WRITES,
    PackedGraph,
)
from ._profile_record import (
    INT,
    KEPT,
    LAST,
    NUM_SLOTS,
    OP,
    PER_RUN,
    PREV,
    PROFILE,
    SLOT,
    WORK,
    Profile,
)


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


@kernel(PACKED_GRAPH, PROFILE, INT)
def is_unread(packed: PackedGraph, profile: Profile, run: int) -> bool:
    """Whether no run reads what `run` writes."""
    op, out = profile.run[run, OP], first_out(profile, run)
    for k in range(packed.op[op + 1, WRITES] - packed.op[op, WRITES]):
        if profile.end_of[out + k] != run:
            return False
    return True


@kernel(PACKED_GRAPH, INT, INT)
def shared_bytes(packed: PackedGraph, op: int, tensor: int) -> int:
    """Bytes that a run of `op` saves where that run is the last to read `tensor`."""
    for i in range(packed.op[op, SHARES], packed.op[op + 1, SHARES]):
        if packed.share[i, 0] == tensor:
            return int(packed.share[i, 1])
    return 0


@kernel(PACKED_GRAPH, PROFILE, INT, INT, INT)
def set_end(packed: PackedGraph, profile: Profile, run: int, tensor: int, end: int) -> None:
    """Make the instance of `tensor` that `run` writes live to the run `end`."""
    at = first_out(profile, run) + packed.tensor[tensor, NTH]
    old = profile.end_of[at]
    if old == end:
        return
    profile.end_of[at] = end
    size = packed.tensor[tensor, SIZE]
    if old != run:
        shared = shared_bytes(packed, profile.run[old, OP], tensor)
        if shared:
            add_range(profile, profile.run[old, SLOT], profile.run[old, SLOT], shared)
    if end != run:
        shared = shared_bytes(packed, profile.run[end, OP], tensor)
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
