"""Moves of the local search on a schedule, and the repair that brings it under the limit again."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ._profile import (
    NUM_EDITS,
    NUM_EXTRA,
    Profile,
    Steps,
    can_edit,
    first_out,
    insert_run,
    is_unread,
    last_read,
    max_range,
    next_read,
    peak_slot,
    random_unit,
    remove_run,
    run_before,
    undo_edits,
)

# Rows of `Profile.scratch`; no two that are in use at the same time are the same.
TENSORS, READERS, DROPPED, PRICED = range(4)
SOURCES = PRICED

# Candidates whose whole price is worked out before one is evicted.
_SHORT_LIST = 4
# Ops looked at to price a recomputation.
_MAX_PRICED = 24
# Runs that one eviction may insert; recomputing more at once never paid, and wide graphs explode.
_MAX_INSERTED = 24


@njit(cache=True, nogil=True)
def random_below(profile: Profile, count: int) -> int:
    """A random integer in [0, count)."""
    return int(random_unit(profile) * count)


@njit(cache=True, nogil=True)
def drop_unread(steps: Steps, profile: Profile, run: int, free: bool) -> bool:
    """Remove `run`, if nobody reads it and its op runs elsewhere, and then what only it read."""
    stack = profile.scratch[DROPPED]
    stack[0] = run
    depth = 1
    while depth > 0:
        depth -= 1
        run = stack[depth]
        op = profile.op_of[run]
        if op < 0 or profile.first_of[op] == profile.last_of[op]:
            continue
        if (profile.prev_same[run] < 0 and not free) or not is_unread(steps, profile, run):
            continue
        if not can_edit(profile):
            return False
        depth = _remove_and_list(steps, profile, run, stack, depth)
    return True


@njit(cache=True, nogil=True)
def drop_extra(steps: Steps, profile: Profile, run: int, free: bool) -> bool:
    """Remove a recomputation, so that the run before it serves its readers; and what it alone read."""
    if not can_edit(profile):
        return False
    sources = profile.scratch[SOURCES]
    for k in range(_remove_and_list(steps, profile, run, sources, 0)):
        if not drop_unread(steps, profile, sources[k], free):
            return False
    return True


@njit(cache=True, nogil=True)
def _remove_and_list(
    steps: Steps, profile: Profile, run: int, runs: NDArray[np.int32], count: int
) -> int:
    """Remove `run` and put the runs it read from into `runs`, after the first `count` of them."""
    op, slot = profile.op_of[run], profile.slot_of[run]
    remove_run(steps, profile, run)
    for r in range(steps.read_start[op], steps.read_start[op + 1]):
        source = run_before(profile, steps.producer[steps.read_tensor[r]], slot)
        if count < runs.size and profile.first_of[profile.op_of[source]] != profile.last_of[profile.op_of[source]]:
            runs[count] = source
            count += 1
    return count


@njit(cache=True, nogil=True)
def recompute_before(
    steps: Steps,
    profile: Profile,
    op: int,
    follower: int,
    limit: int,
    free: bool,
    caution: float,
    at_most_s: float,
) -> bool:
    """Run `op` just before `follower`, and what it reads where keeping that breaks the limit.

    With probability `caution` an input that breaks the limit is recomputed too; else it is kept
    and left to repair. Gives up where the step would take more than `at_most_s`.
    """
    tensors, readers = profile.scratch[TENSORS], profile.scratch[READERS]
    depth, inserted = 0, 0
    while True:
        if steps.fixed[op] or inserted == _MAX_INSERTED or not can_edit(profile):
            return False
        if profile.total_s[0] + steps.time_s[op] > at_most_s:
            return False
        run = insert_run(steps, profile, op, follower)
        inserted += 1
        if profile.prev_same[run] >= 0 and not drop_unread(
            steps, profile, profile.prev_same[run], free
        ):
            return False
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            tensors[depth] = steps.read_tensor[r]
            readers[depth] = run
            depth += 1
        while True:  # the next input whose wait breaks the limit
            if depth == 0:
                return True
            depth -= 1
            tensor, follower = tensors[depth], readers[depth]
            op = steps.producer[tensor]
            if steps.fixed[op] or profile.op_of[follower] < 0:
                continue
            slot = profile.slot_of[follower]
            source = run_before(profile, op, slot)
            if profile.end_of[first_out(profile, source) + steps.nth[tensor]] != follower:
                continue  # somebody reads it later anyhow
            end = last_read(steps, profile, tensor, profile.slot_of[source], slot)
            since = profile.slot_of[end] if end >= 0 else profile.slot_of[source]
            if max_range(profile, since + 1, slot - 1) > limit and random_unit(profile) < caution:
                break


@njit(cache=True, nogil=True)
def price(steps: Steps, profile: Profile, op: int, follower: int, limit: int, enough: float) -> float:
    """About the time it takes to have `op` run again before `follower`: with the inputs that are
    no longer there and can't be kept; infinite where something can't run again."""
    stack = profile.scratch[PRICED]
    slot = profile.slot_of[follower]
    stack[0] = op
    count, at = 1, 0
    total = 0.0
    while at < count:
        op = stack[at]
        at += 1
        if steps.fixed[op]:
            return math.inf
        total += steps.time_s[op]
        if total >= enough:
            return total
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            tensor = steps.read_tensor[r]
            maker = steps.producer[tensor]
            source = run_before(profile, maker, slot)
            end = profile.end_of[first_out(profile, source) + steps.nth[tensor]]
            since = profile.slot_of[end]
            if since >= slot:
                continue
            room = limit - steps.size[tensor]
            if steps.fixed[maker] or max_range(profile, since + 1, slot - 1) <= room:
                continue
            seen = False
            for k in range(count):
                if stack[k] == maker:
                    seen = True
                    break
            if not seen:
                if count == _MAX_PRICED:
                    return total * 2.0
                stack[count] = maker
                count += 1
    return total


@njit(cache=True, nogil=True)
def reads_at(steps: Steps, profile: Profile, run: int, tensor: int) -> bool:
    """Whether `run` reads `tensor`."""
    op = profile.op_of[run]
    for r in range(steps.read_start[op], steps.read_start[op + 1]):
        if steps.read_tensor[r] == tensor:
            return True
    return False


@njit(cache=True, nogil=True)
def evict_at(
    steps: Steps, profile: Profile, slot: int, limit: int, free: bool, noise: float, at_most_s: float
) -> bool:
    """Have something alive at `slot`, but not read there, recomputed before its next reader."""
    excess = max(1, max_range(profile, slot, slot) - limit)
    if random_unit(profile) < 0.5:  # far above the limit, less than the peak is good too
        limit += int(random_unit(profile) * max(0, profile.tree_max[1] - 1 - limit))
    here = profile.slot_run[slot]
    best_0 = best_1 = best_2 = best_3 = math.inf
    run_0 = run_1 = run_2 = run_3 = -1
    tensor_0 = tensor_1 = tensor_2 = tensor_3 = -1
    for op in range(steps.time_s.size - 2):
        if steps.fixed[op]:
            continue
        run = run_before(profile, op, slot)
        if run < 0:
            continue
        out = first_out(profile, run)
        for w in range(steps.write_start[op], steps.write_start[op + 1]):
            end = profile.end_of[out]
            out += 1
            if profile.slot_of[end] <= slot:
                continue
            tensor = steps.write_tensor[w]
            if steps.size[tensor] == 0 or reads_at(steps, profile, here, tensor):
                continue
            rough = (steps.time_s[op] + 1e-30) / min(steps.size[tensor], excess)
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
        reader = next_read(steps, profile, tensor, slot)
        weight = math.exp(noise * (random_unit(profile) - 0.5)) / min(steps.size[tensor], excess)
        cost = weight * (
            price(steps, profile, profile.op_of[run], reader, limit + steps.size[tensor], best / weight)
            + 1e-30
        )
        if cost < best:
            best, chosen, follower = cost, profile.op_of[run], reader
    if chosen < 0:
        return False
    return recompute_before(steps, profile, chosen, follower, limit, free, 0.95, at_most_s)


@njit(cache=True, nogil=True)
def repair(
    steps: Steps,
    profile: Profile,
    limit: int,
    free: bool,
    at_most_s: float,
    max_steps: int,
    noise: float,
    max_failures: int,
    final: bool,
) -> bool:
    """Evict at the peak until it is within `limit`; gives up beyond `at_most_s` or `max_steps`.

    An eviction that fails, or that raises the peak, is taken back and another one tried. What is
    `final` can't be undone later, and so needs no room in the journal.
    """
    failures = 0
    for _ in range(max_steps):
        peak = profile.tree_max[1]
        if peak <= limit:
            return True
        if profile.total_s[0] > at_most_s:
            return False
        if final:
            profile.counts[NUM_EDITS] = 0
        mark = profile.counts[NUM_EDITS]
        total_s = profile.total_s[0]
        done = evict_at(steps, profile, peak_slot(profile), limit, free, noise, at_most_s)
        if not done or profile.tree_max[1] > peak:
            undo_edits(steps, profile, mark)
            profile.total_s[0] = total_s
            noise = min(noise + 0.5, 8.0)
            failures += 1
            if failures == max_failures:
                return False
    return bool(profile.tree_max[1] <= limit)


@njit(cache=True, nogil=True)
def try_dropping(steps: Steps, profile: Profile, limit: int, free: bool, tries: int) -> None:
    """Remove random recomputations where that keeps the peak within `limit`."""
    for _ in range(tries):
        if profile.counts[NUM_EXTRA] == 0:
            return
        run = profile.extra[random_below(profile, profile.counts[NUM_EXTRA])]
        mark = profile.counts[NUM_EDITS]
        done = drop_extra(steps, profile, run, free)
        if not done or profile.tree_max[1] > limit:
            undo_edits(steps, profile, mark)


@njit(cache=True, nogil=True)
def move_run(steps: Steps, profile: Profile, run: int, follower: int) -> bool:
    """Move `run` to just before `follower`, unless somebody's input would be gone by that."""
    op, now, target = profile.op_of[run], profile.slot_of[run], profile.slot_of[follower]
    before, after = profile.prev_same[run], profile.next_same[run]
    if follower == run or profile.counts[NUM_EDITS] + 2 > profile.journal.shape[0]:
        return False
    if before >= 0 and profile.slot_of[before] >= target:
        return False
    if after >= 0 and profile.slot_of[after] < target:
        return False
    if target < now:
        for r in range(steps.read_start[op], steps.read_start[op + 1]):
            maker = steps.producer[steps.read_tensor[r]]
            if profile.slot_of[profile.first_of[maker]] >= target:
                return False
    elif before < 0:
        out = first_out(profile, run)
        for w in range(steps.write_start[op], steps.write_start[op + 1]):
            if profile.end_of[out] != run:
                reader = next_read(steps, profile, steps.write_tensor[w], now)
                if profile.slot_of[reader] < target:
                    return False
            out += 1
    if not can_edit(profile):
        return False
    insert_run(steps, profile, op, follower)
    remove_run(steps, profile, run)
    return True
