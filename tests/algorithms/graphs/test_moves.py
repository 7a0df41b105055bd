"""Moves of the local search: what they leave is legal, and counted as the simulator counts it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_checks import check
from schedsim.algorithms.graphs import _moves as moves
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._packed_graph import FIXED, PackedGraph, pack_graph
from schedsim.algorithms.graphs._profile_record import (
    EXTRA,
    LARGEST,
    NUM_EDITS,
    NUM_EXTRA,
    OP,
    Profile,
)
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, InvalidScheduleError, Schedule, simulate
from schedsim.kernels.compiled import in_python

MANY = 2**60

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # the generator wraps round


def started(seed: int, num: int, *, free: bool = False, line=None):
    """A graph with the profile of its store-all schedule, or of `line`."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num)
    packed = pack_graph(graph.arrays)
    runs = np.arange(graph.num_ops) if line is None else line(rng, graph)
    return rng, graph, packed, make_profile(packed, runs, seed=seed, free=free)


def repeated(rng, graph: Graph) -> np.ndarray:
    """The ops in order, with repeats thrown in."""
    runs: list[int] = []
    for op in range(graph.num_ops):
        if op and rng.random() < 0.5:
            again = int(rng.integers(op))
            if not graph.ops[again].once:
                runs.append(again)
        runs.append(op)
    return np.array(runs)


def rows(packed: PackedGraph, profile: Profile) -> list[int]:
    """The runs in order, by their rows; the virtual ones left out."""
    num_ops = packed.time_s.size - 2
    return [
        int(run) for run in profile.slot_run if run >= 0 and 0 <= profile.run[run, OP] < num_ops
    ]


def is_legal(graph: Graph, runs: list[int]) -> bool:
    try:
        simulate(graph, Schedule(graph.op_names, runs))
    except InvalidScheduleError:
        return False
    return True


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), free=st.booleans())
def test_a_run_moves_where_that_is_legal_and_nowhere_else(seed, num, free):
    """All pairs: the line with the run in its new place, or the same line where that is illegal.

    Runs of one op do not overtake each other.
    """
    rng, graph, packed, profile = started(seed, num, free=free, line=repeated)
    for _ in range(12):
        profile.counts[NUM_EDITS] = 0
        before = rows(packed, profile)
        ops = [int(profile.run[run, OP]) for run in before]
        at, to = rng.integers(0, len(before), 2).tolist()
        moved = in_python(moves.move_run)(packed, profile, before[at], before[to])
        after = check(graph, packed, profile)
        line = ops[:at] + ops[at + 1 :]
        line.insert(to - (at < to), ops[at])
        overtakes = ops[at] in ops[min(at, to) : at] + ops[at + 1 : max(at, to)]
        if moved:
            assert after == line
        else:
            assert after == ops
            assert at == to or overtakes or not is_legal(graph, line)


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), cautious=st.booleans())
def test_recomputing_before_a_reader(seed, num, cautious):
    """A new run of the op stands before the reader; the time allowed is kept; else it is undone."""
    rng, graph, packed, profile = started(seed, num, line=repeated)
    for _ in range(8):
        profile.counts[NUM_EDITS] = 0
        before = check(graph, packed, profile)
        line = rows(packed, profile)
        at = int(rng.integers(1, len(line)))
        op = before[int(rng.integers(at))]
        limit = 0 if cautious else MANY
        at_most_s = float(profile.total_s[0] + rng.integers(0, 25))
        most = int(rng.integers(1, 5))
        done = in_python(moves.recompute_before)(
            packed, profile, op, line[at], limit, 1.0, at_most_s, most
        )
        after = check(graph, packed, profile)
        if packed.op[op, FIXED]:
            assert not done
            assert after == before
        if not done:
            continue
        assert profile.total_s[0] <= at_most_s
        # The reader's row is still there, and a run of the op before it, or nobody reads that op.
        place = rows(packed, profile).index(line[at])
        assert op in after[:place]
        if not cautious:
            assert sum(after.count(i) - before.count(i) for i in set(after)) <= 1


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), free=st.booleans())
def test_dropping_a_recomputation(seed, num, free):
    """It goes, with what it alone had read; never a first run where the order is fixed."""
    rng, graph, packed, profile = started(seed, num, free=free, line=repeated)
    while profile.counts[NUM_EXTRA]:
        profile.counts[NUM_EDITS] = 0
        before = check(graph, packed, profile)
        run = int(profile.run[int(rng.integers(profile.counts[NUM_EXTRA])), EXTRA])
        op = int(profile.run[run, OP])
        assert in_python(moves.drop_extra)(packed, profile, run)
        after = check(graph, packed, profile)
        assert after.count(op) <= before.count(op) - 1
        assert all(after.count(i) <= before.count(i) for i in set(before))
        assert set(after) == set(before)
        if not free:
            assert list(dict.fromkeys(after)) == list(range(graph.num_ops))
    assert len(check(graph, packed, profile)) == graph.num_ops


def test_only_what_nobody_reads_is_dropped():
    """f2 runs again for nobody, from f1 that runs again for it alone: both go; else none."""
    graph = unit_training_chain(4)
    packed = pack_graph(graph.arrays)
    line = [0, 1, 2, 3, 0, 1, 2, *range(4, graph.num_ops)]
    profile = make_profile(packed, np.array(line))
    at = rows(packed, profile)
    drop = in_python(moves.drop_unread)
    # The loss comes next, then b3 reads x3 (of f2) and x4: the second runs are read, all of them.
    assert drop(packed, profile, at[6])
    assert check(graph, packed, profile) == line
    other = [0, 1, 2, 0, 1, 1, *range(3, graph.num_ops)]
    profile = make_profile(packed, np.array(other))
    at = rows(packed, profile)
    assert drop(packed, profile, at[4])  # the second of three runs of f1, and no other
    assert check(graph, packed, profile) == [0, 1, 2, 0, 1, *range(3, graph.num_ops)]


def alone(packed: PackedGraph, graph: Graph, ops: set[int]) -> float:
    return float(sum(packed.time_s[op] for op in ops))


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6))
def test_prices_count_what_recomputation_needs_in_turn(seed, num):
    """With all the room there is, the op; with none, what its inputs come from, by a closure."""
    _, graph, packed, profile = started(seed, num)
    line = rows(packed, profile)
    names = graph.op_names
    for op in range(graph.num_ops):
        follower = line[-1]
        roomy = in_python(moves.price)(packed, profile, op, follower, MANY, math.inf)
        assert roomy == (math.inf if graph.ops[op].once else packed.time_s[op])
        needed, todo, possible = set(), [op], not graph.ops[op].once
        while todo:
            one = todo.pop()
            if one in needed:
                continue
            needed.add(one)
            for tensor in graph.ops[one].reads:
                maker = graph.producer(tensor)
                readers = [i for i, it in enumerate(graph.ops) if tensor in it.reads]
                gone = max(readers) < graph.num_ops - 1 and tensor not in graph.results
                if gone and maker is not None and not graph.ops[maker].once:
                    todo.append(maker)
        tight = in_python(moves.price)(packed, profile, op, follower, -MANY, math.inf)
        if possible:
            assert tight == pytest.approx(alone(packed, graph, needed)), names[op]
        enough = in_python(moves.price)(packed, profile, op, follower, -MANY, roomy / 2 or 0.1)
        assert enough >= min(tight, roomy / 2)


def test_what_a_run_reads():
    """By tensor."""
    _, graph, packed, profile = started(3, 5)
    for run in rows(packed, profile):
        op = graph.ops[int(profile.run[run, OP])]
        found = [
            name
            for t, name in enumerate(graph.arrays.tensor_names)
            if in_python(moves.reads_at)(packed, profile, run, t)
        ]
        assert sorted(found) == sorted(op.reads)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(3, 6), final=st.booleans())
def test_repair_brings_the_peak_down_or_leaves_it(seed, num, final):
    """True exactly where the limit is met; never above where it began."""
    _, graph, packed, profile = started(seed, num)
    peak = int(profile.tree[1, LARGEST])
    for share in (1.0, 0.85, 0.6):
        limit, before = int(share * peak), int(profile.tree[1, LARGEST])
        done = in_python(moves.repair)(packed, profile, limit, math.inf, 30, 0.3, 10, final)
        check(graph, packed, profile)
        after = int(profile.tree[1, LARGEST])
        assert done == (after <= limit)
        assert after <= before
        if before <= limit:
            assert after == before
    if not final:
        in_python(moves.undo_edits)(packed, profile, 0)
        assert check(graph, packed, profile) == list(range(graph.num_ops))


def test_repair_keeps_to_the_time_allowed():
    """No second more: then nothing is recomputed."""
    graph = unit_training_chain(8)
    packed = pack_graph(graph.arrays)
    for more_s, want in ((0.0, 0), (1.0, 1), (100.0, 3)):
        profile = make_profile(packed, np.arange(graph.num_ops), seed=1)
        limit = int(profile.tree[1, LARGEST]) - 3
        at_most_s = graph.store_all_s + more_s
        done = in_python(moves.repair)(packed, profile, limit, at_most_s, 40, 0.0, 40, False)
        assert done == (want == 3)
        assert len(check(graph, packed, profile)) - graph.num_ops >= want
        assert profile.total_s[0] <= at_most_s


def test_an_eviction_at_the_peak_lowers_it():
    """A byte of a chain of equal ops: one run more, one byte less at that slot."""
    graph = unit_training_chain(8)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(graph.num_ops), seed=2)
    peak, slot = int(profile.tree[1, LARGEST]), in_python(moves.peak_slot)(profile)
    evict = in_python(moves.evict_at)
    assert evict(packed, profile, slot, peak - 1, 0.0, math.inf)
    assert len(check(graph, packed, profile)) == graph.num_ops + 1
    assert in_python(moves.max_range)(profile, slot, slot) == peak - 1
    assert not evict(packed, profile, slot, peak - 1, 0.0, graph.store_all_s + 1)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6))
def test_needless_recomputations_are_dropped_within_the_limit(seed, num):
    """All of them where there is room for all; none that takes the peak above the limit."""
    _, graph, packed, profile = started(seed, num, line=repeated)
    peak, total_s = int(profile.tree[1, LARGEST]), float(profile.total_s[0])
    drop = in_python(moves.try_dropping)
    drop(packed, profile, peak, 20)
    check(graph, packed, profile)
    assert profile.tree[1, LARGEST] <= peak
    assert profile.total_s[0] <= total_s
    drop(packed, profile, MANY, 400)
    assert len(check(graph, packed, profile)) == graph.num_ops
