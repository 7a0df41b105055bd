"""Moves of the local search on a schedule, and the repair that brings it within the limit again."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from schedsim.kernels.compiled import kernel_for as kernel

from ._last_reads import first_out, is_unread, last_read, next_read, run_before
from ._live_bytes import max_range, peak_slot
from ._packed_graph import FIXED, NTH, PACKED_GRAPH, PRODUCER, READS, SIZE, WRITES, PackedGraph
from ._profile_edits import can_edit, insert_run, remove_run, undo_edits
from ._profile_record import (
    BOOL,
    EXTRA,
    FIRST,
    INT,
    INTS,
    LARGEST,
    LAST,
    NEXT,
    NUM_EDITS,
    NUM_EXTRA,
    OP,
    PREV,
    PROFILE,
    REAL,
    SLOT,
    WORK,
    Profile,
    random_unit,
)

# Rows of `Profile.scratch`; stacks that are in use at the same time have different rows.
TENSORS, WAITING, DROPPED, PRICED = range(4)
SOURCES = PRICED

# Most ops looked at for one eviction: all of a small graph, a sample of a large graph.
_MAX_LOOKED_AT = 1200
# Candidates whose full price is computed before one of them is evicted.
_SHORT_LIST = 4
# Most ops looked at to price a recomputation.
_MAX_PRICED = 24
# Most runs that one eviction may insert: in wide graphs, what an op reads, and what that is made
# from, soon is everything.
MAX_INSERTED = 24


@kernel(PROFILE, INT)
def random_below(profile: Profile, count: int) -> int:
    """A random integer in [0, count)."""
    return int(random_unit(profile) * count)


@kernel(PACKED_GRAPH, PROFILE, INT, INTS, INT)
def _remove_and_list(
    packed: PackedGraph, profile: Profile, run: int, runs: NDArray[np.int64], count: int
) -> int:
    """Remove `run`, and append the runs that it read from to the first `count` of `runs`."""
    op, slot = profile.run[run, OP], profile.run[run, SLOT]
    remove_run(packed, profile, run)
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        source = run_before(profile, packed.tensor[packed.flat[r], PRODUCER], slot)
        if (
            count < runs.size
            and profile.ends[profile.run[source, OP], FIRST]
            != profile.ends[profile.run[source, OP], LAST]
        ):
            runs[count] = source
            count += 1
    return count


@kernel(PACKED_GRAPH, PROFILE, INT)
def drop_unread(packed: PackedGraph, profile: Profile, run: int) -> bool:
    """Remove `run`, if no run reads it and its op runs elsewhere, and then what only it read."""
    stack = profile.scratch[DROPPED]
    stack[0] = run
    depth = 1
    while depth > 0:
        depth -= 1
        run = stack[depth]
        op = profile.run[run, OP]
        if op < 0 or profile.ends[op, FIRST] == profile.ends[op, LAST]:
            continue
        if (profile.run[run, PREV] < 0 and not profile.free) or not is_unread(packed, profile, run):
            continue
        if not can_edit(profile):
            return False
        depth = _remove_and_list(packed, profile, run, stack, depth)
    return True


@kernel(PACKED_GRAPH, PROFILE, INT)
def drop_extra(packed: PackedGraph, profile: Profile, run: int) -> bool:
    """Remove a recomputation, whose readers the run before serves, and what only it read."""
    if not can_edit(profile):
        return False
    sources = profile.scratch[SOURCES]
    for k in range(_remove_and_list(packed, profile, run, sources, 0)):
        if not drop_unread(packed, profile, sources[k]):
            return False
    return True


@kernel(PACKED_GRAPH, PROFILE, INT, INT, INT, REAL, REAL, INT)
def recompute_before(
    packed: PackedGraph,
    profile: Profile,
    op: int,
    follower: int,
    limit: int,
    caution: float,
    at_most_s: float,
    most: int,
) -> bool:
    """Run `op` just before `follower`, and what it reads where keeping that breaks the limit.

    With probability `caution` an input that breaks the limit is recomputed, too; otherwise it is
    kept and left to the repair; so are all inputs once `most` runs have been inserted. Gives up
    where the step would take more than `at_most_s`.
    """
    tensors, readers = profile.scratch[TENSORS], profile.scratch[WAITING]
    depth, inserted = 0, 0
    while True:
        if packed.op[op, FIXED] or not can_edit(profile):
            return False
        if profile.total_s[0] + packed.time_s[op] > at_most_s:
            return False
        run = insert_run(packed, profile, op, follower)
        inserted += 1
        if profile.run[run, PREV] >= 0 and not drop_unread(packed, profile, profile.run[run, PREV]):
            return False
        if inserted == most:
            return True
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            tensors[depth] = packed.flat[r]
            readers[depth] = run
            depth += 1
        while True:  # the next input whose wait breaks the limit
            if depth == 0:
                return True
            depth -= 1
            tensor, follower = tensors[depth], readers[depth]
            op = packed.tensor[tensor, PRODUCER]
            if packed.op[op, FIXED] or profile.run[follower, OP] < 0:
                continue
            slot = profile.run[follower, SLOT]
            source = run_before(profile, op, slot)
            if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] != follower:
                continue  # a later run reads it in any case
            end = last_read(packed, profile, tensor, profile.run[source, SLOT], slot)
            since = profile.run[end, SLOT] if end >= 0 else profile.run[source, SLOT]
            if max_range(profile, since + 1, slot - 1) > limit and random_unit(profile) < caution:
                break


@kernel(PACKED_GRAPH, PROFILE, INT, INT, INT, REAL)
def price(
    packed: PackedGraph, profile: Profile, op: int, follower: int, limit: int, enough: float
) -> float:
    """About the time that it takes to run `op` again before `follower`.

    Inputs that are no longer alive and cannot be kept run with it; the price is infinite where
    an op that must run again cannot.
    """
    stack = profile.scratch[PRICED]
    slot = profile.run[follower, SLOT]
    stack[0] = op
    count, at = 1, 0
    total = 0.0
    while at < count:
        op = stack[at]
        at += 1
        if packed.op[op, FIXED]:
            return math.inf
        total += packed.time_s[op]
        if total >= enough:
            return float(total)
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            tensor = packed.flat[r]
            maker = packed.tensor[tensor, PRODUCER]
            source = run_before(profile, maker, slot)
            end = profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]]
            since = profile.run[end, SLOT]
            if since >= slot:
                continue
            room = limit - packed.tensor[tensor, SIZE]
            if packed.op[maker, FIXED] or max_range(profile, since + 1, slot - 1) <= room:
                continue
            seen = False
            for k in range(count):
                if stack[k] == maker:
                    seen = True
                    break
            if not seen:
                if count == _MAX_PRICED:
                    return float(total) * 2.0
                stack[count] = maker
                count += 1
    return float(total)


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def reads_at(packed: PackedGraph, profile: Profile, run: int, tensor: int) -> bool:
    """Whether `run` reads `tensor`."""
    op = profile.run[run, OP]
    found = False
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        found = found or packed.flat[r] == tensor
    return found


@kernel(PACKED_GRAPH, PROFILE, INT, INT, REAL, REAL)
def evict_at(
    packed: PackedGraph,
    profile: Profile,
    slot: int,
    limit: int,
    noise: float,
    at_most_s: float,
) -> bool:
    """Evict an instance alive, and not read, at `slot`; recompute it for its next reader.

    The few cheapest by time per byte are priced exactly, with what their recomputation needs in
    turn; the instance of least price, perturbed by `noise`, is evicted.
    """
    excess = max(1, max_range(profile, slot, slot) - limit)
    if random_unit(profile) < 0.5:  # far above the limit, less than the peak is good too
        limit += int(random_unit(profile) * max(0, profile.tree[1, LARGEST] - 1 - limit))
    here = profile.slot_run[slot]
    best_0 = best_1 = best_2 = best_3 = math.inf
    run_0 = run_1 = run_2 = run_3 = -1
    tensor_0 = tensor_1 = tensor_2 = tensor_3 = -1
    num_ops = packed.time_s.size - 2
    profile.counts[WORK] += min(num_ops, _MAX_LOOKED_AT)
    for number in range(min(num_ops, _MAX_LOOKED_AT)):
        op = number if num_ops <= _MAX_LOOKED_AT else random_below(profile, num_ops)
        if packed.op[op, FIXED]:
            continue
        run = run_before(profile, op, slot)
        if run < 0:
            continue
        out = first_out(profile, run)
        for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
            end = profile.end_of[out]
            out += 1
            if profile.run[end, SLOT] <= slot:
                continue
            tensor = packed.flat[w]
            if packed.tensor[tensor, SIZE] == 0 or reads_at(packed, profile, here, tensor):
                continue
            rough = (packed.time_s[op] + 1e-30) / min(packed.tensor[tensor, SIZE], excess)
            if noise > 0.0:
                rough *= 1.0 + 3.0 * noise * random_unit(profile)
            if rough < best_3:
                if rough < best_0:
                    best_3, run_3, tensor_3 = best_2, run_2, tensor_2
                    best_2, run_2, tensor_2 = best_1, run_1, tensor_1
                    best_1, run_1, tensor_1 = best_0, run_0, tensor_0
                    best_0, run_0, tensor_0 = rough, run, tensor
                elif rough < best_1:
                    best_3, run_3, tensor_3 = best_2, run_2, tensor_2
                    best_2, run_2, tensor_2 = best_1, run_1, tensor_1
                    best_1, run_1, tensor_1 = rough, run, tensor
                elif rough < best_2:
                    best_3, run_3, tensor_3 = best_2, run_2, tensor_2
                    best_2, run_2, tensor_2 = rough, run, tensor
                else:
                    best_3, run_3, tensor_3 = rough, run, tensor
    best = math.inf
    chosen, follower = -1, -1
    for k in range(_SHORT_LIST):
        run, tensor = run_0, tensor_0
        if k == 1:
            run, tensor = run_1, tensor_1
        elif k == 2:
            run, tensor = run_2, tensor_2
        elif k == 3:
            run, tensor = run_3, tensor_3
        if run < 0:
            break
        reader = next_read(packed, profile, tensor, slot)
        size = packed.tensor[tensor, SIZE]
        weight = math.exp(noise * (random_unit(profile) - 0.5)) / min(size, excess)
        # With the tensor evicted, its bytes are additional room for what it is made from.
        took = price(packed, profile, profile.run[run, OP], reader, limit + size, best / weight)
        cost = weight * (took + 1e-30)
        if cost < best:
            best, chosen, follower = cost, profile.run[run, OP], reader
    if chosen < 0:
        return False
    return recompute_before(packed, profile, chosen, follower, limit, 0.95, at_most_s, MAX_INSERTED)


@kernel(PACKED_GRAPH, PROFILE, INT, REAL, INT, REAL, INT, BOOL)
def repair(
    packed: PackedGraph,
    profile: Profile,
    limit: int,
    at_most_s: float,
    max_steps: int,
    noise: float,
    max_failures: int,
    final: bool,
) -> bool:
    """Evict at the peak until it is within `limit`; gives up beyond `at_most_s` or `max_steps`.

    An eviction that fails, or that raises the peak, is undone, and another one is tried, with
    more and more randomness; after `max_failures` the repair ends. A `final` repair is never
    undone later and so needs no room in the journal; in it a success resets the failures.
    """
    failures, calm = 0, noise
    for _ in range(max_steps):
        peak = profile.tree[1, LARGEST]
        if peak <= limit:
            return True
        if profile.total_s[0] > at_most_s:
            return False
        if final:
            profile.counts[NUM_EDITS] = 0
        mark = profile.counts[NUM_EDITS]
        total_s = profile.total_s[0]
        done = evict_at(packed, profile, peak_slot(profile), limit, noise, at_most_s)
        if not done or profile.tree[1, LARGEST] > peak:
            undo_edits(packed, profile, mark)
            profile.total_s[0] = total_s
            noise = min(noise + 0.5, 8.0)
            failures += 1
            if failures == max_failures:
                return False
        elif final:
            failures, noise = 0, calm
    return bool(profile.tree[1, LARGEST] <= limit)


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def try_dropping(packed: PackedGraph, profile: Profile, limit: int, tries: int) -> None:
    """Remove random recomputations where that keeps the peak within `limit`."""
    for _ in range(tries):
        if profile.counts[NUM_EXTRA] == 0:
            return
        run = profile.run[random_below(profile, profile.counts[NUM_EXTRA]), EXTRA]
        mark = profile.counts[NUM_EDITS]
        done = drop_extra(packed, profile, run)
        if not done or profile.tree[1, LARGEST] > limit:
            undo_edits(packed, profile, mark)


@kernel(PACKED_GRAPH, PROFILE, INT, INT)
def move_run(packed: PackedGraph, profile: Profile, run: int, follower: int) -> bool:
    """Move `run` to just before `follower`, unless an input of some run would then be missing."""
    op, now, target = profile.run[run, OP], profile.run[run, SLOT], profile.run[follower, SLOT]
    before, after = profile.run[run, PREV], profile.run[run, NEXT]
    if follower == run or profile.counts[NUM_EDITS] + 2 > profile.journal.shape[0]:
        return False
    if before >= 0 and profile.run[before, SLOT] >= target:
        return False
    if after >= 0 and profile.run[after, SLOT] < target:
        return False
    if target < now:
        for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
            maker = packed.tensor[packed.flat[r], PRODUCER]
            if profile.run[profile.ends[maker, FIRST], SLOT] >= target:
                return False
    elif before < 0:
        out = first_out(profile, run)
        for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
            if profile.end_of[out] != run:
                reader = next_read(packed, profile, packed.flat[w], now)
                if profile.run[reader, SLOT] < target:
                    return False
            out += 1
    if not can_edit(profile):
        return False
    insert_run(packed, profile, op, follower)
    remove_run(packed, profile, run)
    return True
