"""Simulated annealing over the recomputations and the order of a schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from schedsim.kernels.compiled import kernel_for as kernel
from schedsim.kernels.record import Ints, Reals, Record

from ._last_reads import first_out, next_read, run_before
from ._live_bytes import excess_over, max_range, next_over, peak_slot, sum_excess
from ._memory_profile import store_runs
from ._moves import (
    MAX_INSERTED,
    drop_extra,
    move_run,
    random_below,
    reads_at,
    recompute_before,
    repair,
    try_dropping,
)
from ._packed_graph import FIXED, NTH, PACKED_GRAPH, PRODUCER, READS, SIZE, WRITES, PackedGraph
from ._profile_edits import undo_edits
from ._profile_record import (
    BOOL,
    EXCESS,
    EXTRA,
    EXTRA_AT,
    FIRST,
    INT,
    LARGEST,
    LAST,
    NUM_EDITS,
    NUM_EXTRA,
    NUM_SLOTS,
    OP,
    PREV,
    PROFILE,
    REAL,
    SLOT,
    SUMMED,
    WORK,
    Profile,
    random_unit,
)

# Where bytes above the limit are summed, that share of evictions looks elsewhere than at the peak.
_AWAY = 0.7

# Steps that a move takes beside its edits where bytes above the limit are summed to the end: moves
# are many and small there, and look at more of memory.
_SUMMED_MOVE = 32

# The most evictions of an exchange.
_MOST_EVICTED = 4


@dataclass(frozen=True, eq=False)
class Rules(Record):
    """The rules that stay the same for one walker throughout its annealing.

    Attributes
    ----------
    limit : int
        Bytes that the peak may have, the graph's static bytes not counted.
    thorough : float
        Share of moves that are repaired by greedy evictions before they count. Such moves take some
        twenty times as long as the others, and reach what single edits do not.
    price : (4,) float64
        Seconds per byte above `limit`, raised while the peak is above the limit and lowered while
        it is within; then the least and the largest value of that price; then bytes: for as long as
        nothing fits, the temperature is no lower than the price of these.
    summed : bool
        Whether bytes above the limit count at every run, for as long as nothing fits, and not at
        the peak alone.
    exchanges : float
        Share of moves that exchange a recomputation for others, once something fits; at most 0.35.
    lasting : bool
        Whether they count at every run after that, too. By the peak alone, where many runs share
        it, a schedule that has left the limit for a faster one rarely finds back.
    """

    limit: int
    thorough: float
    price: Reals
    summed: bool = False
    exchanges: float = 0.0
    lasting: bool = False


@dataclass(frozen=True, eq=False)
class Found(Record):
    """The fastest schedule within the limit so far.

    Attributes
    ----------
    runs : (most_runs,) int64
    best : (2,) float64
        Its time in seconds, infinite where there is none, and the number of its runs.
    """

    runs: Ints
    best: Reals


@kernel(PACKED_GRAPH, PROFILE)
def random_run(packed: PackedGraph, profile: Profile) -> int:
    """A random run of an op that may run again; -1 where a few tries find none."""
    for _ in range(64):
        run = profile.slot_run[random_below(profile, profile.counts[NUM_SLOTS])]
        if run >= 0 and not packed.op[profile.run[run, OP], FIXED]:
            return int(run)
    return -1


@kernel(PROFILE)
def random_extra(profile: Profile) -> int:
    """A random recomputation; -1 where there is none."""
    count = profile.counts[NUM_EXTRA]
    return int(profile.run[random_below(profile, count), EXTRA]) if count > 0 else -1


@kernel(PACKED_GRAPH, PROFILE)
def drop_window(packed: PackedGraph, profile: Profile) -> bool:
    """Remove every recomputation in a random stretch of the schedule."""
    extra = random_extra(profile)
    if extra < 0:
        return False
    centre = profile.run[extra, SLOT]
    span = int(profile.counts[NUM_SLOTS] * 0.002 * math.exp(3.0 * random_unit(profile))) + 2
    low, high = max(1, centre - span), min(profile.counts[NUM_SLOTS] - 2, centre + span)
    dropped = 0
    for slot in range(high, low, -1):
        run = profile.slot_run[slot]
        if run >= 0 and profile.run[run, EXTRA_AT] >= 0 and profile.run[run, PREV] >= 0:
            if not drop_extra(packed, profile, run):
                return False
            dropped += 1
            if dropped == 24:
                break
    return dropped > 0


@kernel(PACKED_GRAPH, PROFILE, INT, REAL)
def evict_random(packed: PackedGraph, profile: Profile, limit: int, at_most_s: float) -> bool:
    """Recompute some instance before a random run that reads it."""
    run = random_run(packed, profile)
    if run < 0:
        return False
    op = profile.run[run, OP]
    outputs = packed.op[op + 1, WRITES] - packed.op[op, WRITES]
    if outputs == 0:
        return False
    k = random_below(profile, outputs)
    tensor = packed.flat[packed.op[op, WRITES] + k]
    end = profile.end_of[first_out(profile, run) + k]
    if end == run:
        return False
    low, high = profile.run[run, SLOT], profile.run[end, SLOT]
    if high - low < 2:
        return False
    reader = next_read(packed, profile, tensor, low + random_below(profile, high - low))
    if reader < 0:
        return False
    return recompute_before(packed, profile, op, reader, limit, 0.9, at_most_s, MAX_INSERTED)


@kernel(PACKED_GRAPH, PROFILE, INT)
def shift(packed: PackedGraph, profile: Profile, run: int) -> bool:
    """Move a run to a random place; near places are tried more often than far ones."""
    slot = profile.run[run, SLOT]
    distance = random_unit(profile)
    distance *= distance * distance
    if random_unit(profile) < 0.5:
        slot += 1 + int(distance * (profile.counts[NUM_SLOTS] - 2 - slot))
    else:
        slot -= 1 + int(distance * (slot - 1))
    slot = max(2, min(profile.counts[NUM_SLOTS] - 3, slot))
    while profile.slot_run[slot] < 0:
        slot += 1
    return move_run(packed, profile, run, profile.slot_run[slot])


@kernel(PACKED_GRAPH, PROFILE)
def shift_any(packed: PackedGraph, profile: Profile) -> bool:
    """`shift` of a random run, the two virtual runs excepted."""
    num_ops = packed.time_s.size - 2
    return shift(packed, profile, profile.ends[random_below(profile, num_ops), FIRST])


@kernel(PACKED_GRAPH, PROFILE, INT)
def advance_reader(packed: PackedGraph, profile: Profile, slot: int) -> bool:
    """Move the last reader of some instance that is alive at `slot` to just before `slot`."""
    num_ops = packed.time_s.size - 2
    for _ in range(20):
        op = random_below(profile, num_ops)
        run = run_before(profile, op, slot)
        outputs = packed.op[op + 1, WRITES] - packed.op[op, WRITES]
        if run < 0 or outputs == 0:
            continue
        end = profile.end_of[first_out(profile, run) + random_below(profile, outputs)]
        if profile.run[end, SLOT] > slot and profile.run[end, OP] < num_ops:
            return move_run(packed, profile, end, profile.slot_run[slot])
    return False


@kernel(PACKED_GRAPH, PROFILE, INT, INT, REAL)
def evict_sampled(
    packed: PackedGraph, profile: Profile, slot: int, limit: int, at_most_s: float
) -> bool:
    """Recompute some instance that is alive at `slot` before its next reader, to a random depth."""
    num_ops = packed.time_s.size - 2
    here = profile.slot_run[slot]
    for _ in range(40):
        op = random_below(profile, num_ops)
        if packed.op[op, FIXED]:
            continue
        outputs = packed.op[op + 1, WRITES] - packed.op[op, WRITES]
        if outputs == 0:
            continue
        run = run_before(profile, op, slot)
        if run < 0:
            continue
        k = random_below(profile, outputs) if outputs > 1 else 0
        end = profile.end_of[first_out(profile, run) + k]
        if profile.run[end, SLOT] <= slot:
            continue
        tensor = packed.flat[packed.op[op, WRITES] + k]
        if packed.tensor[tensor, SIZE] == 0 or (
            here >= 0 and reads_at(packed, profile, here, tensor)
        ):
            continue
        reader = next_read(packed, profile, tensor, slot)
        caution, most = random_unit(profile), random_unit(profile)
        most = 1 + int(MAX_INSERTED * most * most * most)
        return recompute_before(packed, profile, op, reader, limit, caution, at_most_s, most)
    return False


@kernel(PACKED_GRAPH, PROFILE, INT, REAL)
def exchange(packed: PackedGraph, profile: Profile, limit: int, at_most_s: float) -> bool:
    """Remove a random recomputation, and evict others at the peak until it is within `limit` again.

    One after the other, the two lead over a schedule that is slower or over the limit, and near the
    end of an annealing few of these are accepted.
    """
    run = random_extra(profile)
    if run < 0 or not drop_extra(packed, profile, run):
        return False
    for _ in range(_MOST_EVICTED):
        if profile.tree[1, LARGEST] <= limit:
            return True
        if profile.total_s[0] > at_most_s:
            return False
        if not evict_sampled(packed, profile, peak_slot(profile), limit, at_most_s):
            return False
    return bool(profile.tree[1, LARGEST] <= limit)


@kernel(PROFILE)
def crowded_slot(profile: Profile) -> int:
    """The peak; where bytes above the limit are summed, more often any slot above it."""
    if profile.counts[SUMMED] and profile.counts[EXCESS] and random_unit(profile) < _AWAY:
        return next_over(profile, random_below(profile, profile.counts[NUM_SLOTS]))
    return peak_slot(profile)


@kernel(PACKED_GRAPH, PROFILE, INT, INT, REAL, REAL)
def is_hopeless(
    packed: PackedGraph, profile: Profile, run: int, limit: int, price_s: float, at_most_s: float
) -> bool:
    """Whether dropping this recomputation surely ends above `at_most_s`, the price included.

    The outputs are then kept from the run before, and what the run reads may be evicted earlier.
    Where what it reads was recomputed too, more runs may go with it, and the answer is no.
    """
    op, slot = profile.run[run, OP], profile.run[run, SLOT]
    freed = 0
    for r in range(packed.op[op, READS], packed.op[op + 1, READS]):
        tensor = packed.flat[r]
        source = run_before(profile, packed.tensor[tensor, PRODUCER], slot)
        if profile.end_of[first_out(profile, source) + packed.tensor[tensor, NTH]] == run:
            maker = profile.run[source, OP]
            if profile.ends[maker, FIRST] != profile.ends[maker, LAST]:
                return False
            freed += packed.tensor[tensor, SIZE]
    spare_s = at_most_s - profile.total_s[0] + packed.time_s[op]
    out, before = first_out(profile, run), first_out(profile, profile.run[run, PREV])
    for w in range(packed.op[op, WRITES], packed.op[op + 1, WRITES]):
        if profile.end_of[out] != run:
            since = profile.run[profile.end_of[before], SLOT]
            peak = max_range(profile, since + 1, slot - 1) - freed
            peak += packed.tensor[packed.flat[w], SIZE]
            if price_s * (peak - limit) > spare_s:
                return True
        out += 1
        before += 1
    return False


@kernel(PACKED_GRAPH, PROFILE, Found, Rules, REAL, INT, INT)
def anneal(
    packed: PackedGraph,
    profile: Profile,
    found: Found,
    rules: Rules,
    heat_s: float,
    num_moves: int,
    most_work: int,
) -> int:
    """Anneal at one temperature, in seconds of step time; returns the number of moves made.

    The annealing ends after `num_moves`, or with the first move that takes ``counts[WORK]`` to
    `most_work`.
    """
    limit, price, best = rules.limit, rules.price, found.best
    profile.counts[SUMMED] = 0
    if rules.summed and (rules.lasting or best[1] == 0.0):
        sum_excess(profile, limit)
    excess = excess_over(profile, limit)
    for move in range(num_moves):
        if profile.counts[WORK] >= most_work:
            return move
        profile.counts[WORK] += _SUMMED_MOVE if rules.lasting else 8
        if move % 64 == 0:
            if excess > 0:
                price[0] = min(price[0] * 1.04, price[2])
            else:
                price[0] = max(price[0] * 0.98, price[1])
        profile.counts[NUM_EDITS] = 0
        before_s = profile.total_s[0]
        # The cost that the move may have is drawn first, so that a hopeless move ends early.
        allowed_s = before_s + price[0] * excess
        warm_s = heat_s
        if best[1] == 0.0:
            # The price has grown so far that no move may raise the peak by a single tensor: without
            # this the walker would stay where it is for the rest of its work.
            warm_s = max(heat_s, price[0] * price[3])
        allowed_s -= warm_s * math.log(max(random_unit(profile), 1e-300))
        repaired = random_unit(profile) < rules.thorough
        kind = random_unit(profile)
        if repaired:
            if kind < 0.5:
                run = random_extra(profile)
                moved = run >= 0 and drop_extra(packed, profile, run)
            elif kind < 0.65:
                moved = drop_window(packed, profile)
            else:
                moved = evict_random(packed, profile, limit, allowed_s + 4.0 * heat_s)
            if moved:
                moved = repair(packed, profile, limit, allowed_s + 4.0 * heat_s, 40, 1.0, 8, False)
                try_dropping(packed, profile, limit, 3)
        elif profile.free and random_unit(profile) < 0.4:
            moved = shift_any(packed, profile)
        elif kind < 0.4:
            slot = crowded_slot(profile)
            moved = evict_sampled(packed, profile, slot, limit, allowed_s)
        elif kind < 0.4 + rules.exchanges and best[1] != 0.0:
            moved = exchange(packed, profile, limit, allowed_s)
        elif kind < 0.75:
            run = random_extra(profile)
            moved = (
                run >= 0
                and not is_hopeless(packed, profile, run, limit, price[0], allowed_s)
                and drop_extra(packed, profile, run)
            )
        elif kind < 0.85:
            moved = evict_random(packed, profile, limit, allowed_s)
        elif kind < 0.92 or not profile.free:
            run = random_extra(profile)
            moved = run >= 0 and shift(packed, profile, run)
        else:
            moved = advance_reader(packed, profile, peak_slot(profile))
        after = excess_over(profile, limit)
        if not moved or profile.total_s[0] + price[0] * after > allowed_s:
            undo_edits(packed, profile, 0)
            profile.total_s[0] = before_s
            continue
        excess = after
        if excess == 0 and profile.total_s[0] < best[0] * (1.0 - 1e-12):
            best[0] = profile.total_s[0]
            best[1] = store_runs(packed, profile, found.runs)
            if not rules.lasting:
                profile.counts[SUMMED] = 0
    return num_moves


@kernel(PACKED_GRAPH, PROFILE, Found, Rules, REAL, INT, INT, BOOL)
def walk(
    packed: PackedGraph,
    profile: Profile,
    found: Found,
    rules: Rules,
    heat_s: float,
    num: int,
    most_work: int,
    greedy: bool,
) -> int:
    """`anneal` for `num` moves; or, `greedy`, the final `repair` of `num` evictions at most.

    Both are one kernel for Python, as either alone would have the compiler optimise the code of
    evictions once more: a second of a first plan. Of the repair it says whether the schedule fits.
    """
    if greedy:
        return int(repair(packed, profile, rules.limit, math.inf, num, 0.3, 200, True))
    return int(anneal(packed, profile, found, rules, heat_s, num, most_work))
