"""Annealing of a schedule: every move leaves a true profile, and the best is truly feasible."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_checks import check
from schedsim.algorithms.graphs import _anneal as annealing
from schedsim.algorithms.graphs._anneal import Found, Rules
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._moves import drop_extra
from schedsim.algorithms.graphs._packed_graph import FIXED, pack_graph
from schedsim.algorithms.graphs._profile_edits import undo_edits
from schedsim.algorithms.graphs._profile_record import (
    EXTRA,
    EXTRA_AT,
    LARGEST,
    NUM_EDITS,
    NUM_EXTRA,
    OP,
    SLOT,
    WORK,
)
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op, Schedule, simulate
from schedsim.kernels.compiled import in_python

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")  # the generator wraps round

ANY = 2**60


def started(seed: int, num: int, *, free: bool = False, repeats: float = 0.5):
    """A graph, and the profile of a schedule that repeats some ops."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num)
    runs: list[int] = []
    for op in range(graph.num_ops):
        again = int(rng.integers(op)) if op else 0
        if op and rng.random() < repeats and not graph.ops[again].once:
            runs.append(again)
        runs.append(op)
    packed = pack_graph(graph.arrays)
    return graph, packed, make_profile(packed, np.array(runs), seed=seed, free=free)


def annealed(graph: Graph, packed, profile, limit: int, **given):
    """The best found, from `profile` on; options of `anneal`."""
    ask = {"heat_s": 2.0, "num_moves": 60, "most_work": 2**62, "thorough": 0.2} | given
    found = Found(np.zeros(profile.run.shape[0], np.int64), np.array([np.inf, 0.0]))
    price = ask.pop("price", (1.0, 0.01, 100.0, 0.0))
    rules = Rules(limit, ask.pop("thorough"), np.array(price))
    made = in_python(annealing.anneal)(packed, profile, found, rules, *ask.values())
    return found, made


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), free=st.booleans())
def test_the_best_is_what_the_simulator_says(seed, num, free):
    """Within the limit, of that time, and no slower than a schedule that fitted on the way."""
    graph, packed, profile = started(seed, num, free=free)
    limit = int(profile.tree[1, LARGEST]) * 9 // 10
    found, made = annealed(graph, packed, profile, limit)
    assert made == 60
    runs = check(graph, packed, profile)
    best_s, size = found.best
    if profile.tree[1, LARGEST] <= limit:
        assert best_s <= simulate(graph, Schedule(graph.op_names, runs)).makespan_s * (1 + 1e-9)
    if size:
        told = simulate(graph, Schedule(graph.op_names, found.runs[: int(size)]))
        assert told.peak_bytes <= limit + graph.static_bytes
        assert told.makespan_s == pytest.approx(best_s)


def test_only_a_warm_walker_leaves_a_peak_that_no_single_edit_lowers():
    """At the highest price no move raises the peak, unless the peak has a temperature."""
    dear = (1e6, 1e6, 1e6)
    higher = {0.0: 0, 50.0: 0}
    for seed in range(6):
        for warm_bytes in higher:
            graph, packed, profile = started(seed, 6)
            before = int(profile.tree[1, LARGEST])
            price = (*dear, warm_bytes)
            annealed(graph, packed, profile, 0, heat_s=1.0, thorough=0.0, price=price)
            higher[warm_bytes] += int(profile.tree[1, LARGEST]) > before
    assert higher[0.0] == 0
    assert higher[50.0] > 0


def test_a_walker_with_a_plan_is_not_warm():
    """Where something fits, the temperature of the peak changes nothing."""
    peaks = []
    for warm_bytes in (0.0, 1e9):
        _, packed, profile = started(3, 6)
        limit = int(profile.tree[1, LARGEST])
        found = Found(np.zeros(profile.run.shape[0], np.int64), np.array([1e9, 1.0]))
        rules = Rules(limit, 0.2, np.array([1.0, 0.01, 100.0, warm_bytes]))
        in_python(annealing.anneal)(packed, profile, found, rules, 2.0, 60, 2**62)
        peaks.append((int(profile.tree[1, LARGEST]), float(profile.total_s[0])))
    assert peaks[0] == peaks[1]


def test_recomputations_that_nobody_needs_go():
    """With room for everything, annealing cold ends at store-all."""
    graph, packed, profile = started(4, 6)
    assert profile.counts[NUM_EXTRA] > 2
    found, _ = annealed(graph, packed, profile, ANY, heat_s=1e-9, num_moves=300, thorough=0.0)
    assert found.best[0] == pytest.approx(graph.store_all_s)


def test_an_optimum_is_found():
    """A chain of six at a byte below store-all: one op runs again."""
    graph = unit_training_chain(6)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(graph.num_ops), seed=3)
    limit = int(profile.tree[1, LARGEST]) - 1
    found, _ = annealed(graph, packed, profile, limit, heat_s=0.5, num_moves=200)
    assert found.best[0] == graph.store_all_s + 1


def test_work_ends_it_as_moves_do():
    """With the first move that takes the count there; the same seed makes the same moves."""
    graph, packed, profile = started(11, 6)
    before = int(profile.counts[WORK])
    _, made = annealed(graph, packed, profile, 40, most_work=before + 2000, num_moves=10**6)
    assert profile.counts[WORK] >= before + 2000
    graph, packed, again = started(11, 6)
    _, shorter = annealed(graph, packed, again, 40, num_moves=made - 1)
    assert shorter == made - 1
    assert again.counts[WORK] < before + 2000
    _, none = annealed(graph, packed, again, 40, most_work=0)
    assert none == 0


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6))
def test_what_is_called_hopeless_is(seed, num):
    """Dropped all the same, the recomputation ends above what was allowed, the price included."""
    _, packed, profile = started(seed, num)
    price_s, peak = 0.5, int(profile.tree[1, LARGEST])
    for limit in (peak, peak * 3 // 4, peak // 2):
        now_s = profile.total_s[0] + price_s * max(0, peak - limit)
        for number in range(int(profile.counts[NUM_EXTRA])):
            run = int(profile.run[number, EXTRA])
            profile.counts[NUM_EDITS] = 0
            before_s = float(profile.total_s[0])
            hopeless = in_python(annealing.is_hopeless)(
                packed, profile, run, limit, price_s, float(now_s)
            )
            in_python(drop_extra)(packed, profile, run)
            after = max(0, int(profile.tree[1, LARGEST]) - limit)
            cost = profile.total_s[0] + price_s * after
            in_python(undo_edits)(packed, profile, 0)
            profile.total_s[0] = before_s
            if hopeless:
                assert cost > now_s
            if number > 6:
                break


def test_a_byte_that_would_not_fit_is_hopeless():
    """x1 is made again for the backward: dropped, it lies where there is no room for it.

    A second is spared, and a byte over the limit costs a hundred, or half a one.
    """
    graph = unit_training_chain(6)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.array([*range(11), 0, 11, 12]))
    peak, run = int(profile.tree[1, LARGEST]), int(profile.run[0, EXTRA])
    assert peak == simulate(graph, Schedule.store_all(graph)).peak_bytes - 1

    def hopeless(limit, price_s, more_s=0.0):
        at_most_s = float(profile.total_s[0]) + more_s
        return in_python(annealing.is_hopeless)(packed, profile, run, limit, price_s, at_most_s)

    assert hopeless(peak, 100.0)
    assert not hopeless(peak + 1, 100.0)
    assert not hopeless(peak, 0.5)
    assert not hopeless(peak, 100.0, 99.5)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(2, 6), free=st.booleans())
def test_every_kind_of_move_leaves_a_legal_schedule(seed, num, free):
    """Counted to the byte, and taken back to the byte; windows only take runs away."""
    graph, packed, profile = started(seed, num, free=free)
    slot = int(profile.run[int(profile.slot_run[profile.slot_run >= 0][3]), SLOT])
    kinds = {
        "drop_window": (),
        "evict_random": (0, math.inf),
        "shift_any": (),
        "advance_reader": (slot,),
        "evict_sampled": (slot, 0, math.inf),
        "exchange": (0, math.inf),
    }
    for name, arguments in kinds.items():
        if name in ("shift_any", "advance_reader") and not free:
            continue
        for _ in range(4):
            profile.counts[NUM_EDITS] = 0
            before, total_s = check(graph, packed, profile), float(profile.total_s[0])
            moved = in_python(getattr(annealing, name))(packed, profile, *arguments)
            after = check(graph, packed, profile)
            if name == "drop_window" and moved:
                assert len(after) < len(before)
                assert all(after.count(op) <= before.count(op) for op in set(before))
            if name in ("shift_any", "advance_reader"):
                assert sorted(after) == sorted(before)
            in_python(undo_edits)(packed, profile, 0)
            profile.total_s[0] = total_s
            assert check(graph, packed, profile) == before


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(3, 6))
def test_an_exchange_is_within_the_limit_and_the_time(seed, num):
    """Where it says that it was done; and undone, the profile is as before."""
    graph, packed, profile = started(seed, num, repeats=0.8)
    limit = int(profile.tree[1, LARGEST])
    for _ in range(10):
        before = (int(profile.tree[1, LARGEST]), float(profile.total_s[0]))
        profile.counts[NUM_EDITS] = 0
        allowed_s = before[1] + 0.5
        if in_python(annealing.exchange)(packed, profile, limit, allowed_s):
            assert profile.tree[1, LARGEST] <= limit
            assert profile.total_s[0] <= allowed_s * (1 + 1e-9)
            check(graph, packed, profile)
        else:
            in_python(undo_edits)(packed, profile, 0)
            assert int(profile.tree[1, LARGEST]) == before[0]
            assert profile.total_s[0] == pytest.approx(before[1])


def test_an_exchange_needs_no_step_that_is_worse():
    """Two tensors of which one fits, kept the dear one's recomputation: no single edit helps."""
    ops = (
        Op("dear", time_s=5, writes={"x": 4}),
        Op("cheap", time_s=1, writes={"y": 4}),
        Op("last", time_s=1, writes={"z": 4}),
        Op("end", "backward", time_s=1, reads=("z",), writes={"w": 1}),
        Op("use", "backward", time_s=1, reads=("w", "x"), writes={"v": 1}),
        Op("read", "backward", time_s=1, reads=("v", "y")),
    )
    graph = Graph("two", ops)
    packed = pack_graph(graph.arrays)
    names = ["dear", "cheap", "last", "end", "dear", "use", "read"]
    runs = np.array([graph.op_names.index(name) for name in names])
    profile = make_profile(packed, runs, seed=1, free=False)
    limit = int(profile.tree[1, LARGEST])
    better = 0
    for _ in range(60):
        profile.counts[NUM_EDITS] = 0
        now_s = float(profile.total_s[0])
        done = in_python(annealing.exchange)(packed, profile, limit, now_s)
        if done and profile.total_s[0] < now_s:
            better += 1
            break
        in_python(undo_edits)(packed, profile, 0)
    assert better
    assert profile.total_s[0] == graph.store_all_s + 1


def test_random_choices_are_of_what_may_be_chosen():
    """Runs of ops that may run again; recomputations, and -1 where there are none."""
    graph, packed, profile = started(8, 6)
    seen = {in_python(annealing.random_run)(packed, profile) for _ in range(200)}
    assert all(not packed.op[profile.run[run, OP], FIXED] for run in seen)
    assert len(seen) > graph.num_ops // 2
    extras = {in_python(annealing.random_extra)(profile) for _ in range(200)}
    assert all(profile.run[run, EXTRA_AT] >= 0 for run in extras)
    assert len(extras) == profile.counts[NUM_EXTRA]
    _, _, plain = started(8, 6, repeats=0.0)
    assert in_python(annealing.random_extra)(plain) == -1
