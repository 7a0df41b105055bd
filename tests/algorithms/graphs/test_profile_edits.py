"""Edits of a live-memory profile, against the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from profile_checks import check, exact
from schedsim.algorithms.graphs._live_bytes import sum_excess
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._packed_graph import FIXED, PackedGraph, pack_graph
from schedsim.algorithms.graphs._profile_edits import can_edit, insert_run, remove_run, undo_edits
from schedsim.algorithms.graphs._profile_record import (
    EXTRA,
    FIRST,
    LARGEST,
    NUM_EDITS,
    NUM_EXTRA,
    NUM_REBUILDS,
    SLOT,
    Profile,
)
from tiers import slow_where

from schedsim import Graph


@pytest.mark.parametrize("block", slow_where(range(8), lambda block: block >= 3))
def test_edits_agree_with_the_simulator(block):
    """Random runs come and go, many of them in one place, and are taken back."""
    num_exact = 0
    for seed in range(40 * block, 40 * block + 40):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, int(rng.integers(1, 14)))
        num_exact += exact(graph)
        packed = pack_graph(graph.arrays)
        profile = make_profile(packed, np.arange(graph.num_ops), room=1.0)
        for _ in range(6):
            profile.counts[NUM_EDITS] = 0
            if rng.random() < 0.3:
                sum_excess(profile, int(rng.integers(profile.tree[1, LARGEST] + 1)))
            before = check(graph, packed, profile)
            for _ in range(int(rng.integers(1, 8))):
                edit(rng, graph, packed, profile)
                check(graph, packed, profile)
            if rng.random() < 0.5:
                undo_edits(packed, profile, 0)
                assert check(graph, packed, profile) == before
    assert num_exact > 10


def edit(rng, graph: Graph, packed: PackedGraph, profile: Profile) -> None:
    """Insert or remove a random run."""
    if rng.random() < 0.7 and can_edit(profile):
        op = int(rng.integers(graph.num_ops))
        first_slot = profile.run[profile.ends[op, FIRST], SLOT]
        followers = [run for run in profile.slot_run[first_slot + 1 :] if run >= 0]
        if not packed.op[op, FIXED]:
            insert_run(packed, profile, op, int(followers[0 if rng.random() < 0.5 else -1]))
    elif profile.counts[NUM_EXTRA]:
        number = int(rng.integers(profile.counts[NUM_EXTRA]))
        remove_run(packed, profile, profile.run[number, EXTRA])


def test_crowded_slots_are_made_room_in():
    """A run after another in the same place: neighbours move, then all are spread anew."""
    graph = random_graph(np.random.default_rng(3), 12)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(12), room=1.0)
    again = next(op for op in range(12) if not packed.op[op, FIXED])
    follower = int(profile.ends[again + 1, FIRST])
    sum_excess(profile, 5)
    while can_edit(profile):
        insert_run(packed, profile, again, follower)
    assert profile.counts[NUM_REBUILDS] > 1
    assert len(check(graph, packed, profile)) > 25
