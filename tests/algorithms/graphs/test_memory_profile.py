"""Loading, storing and spreading the runs of a live-memory profile."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from profile_checks import check
from schedsim.algorithms.graphs._memory_profile import make_profile, rebuild
from schedsim.algorithms.graphs._packed_graph import FIXED, pack_graph
from schedsim.algorithms.graphs._profile_edits import insert_run
from schedsim.algorithms.graphs._profile_record import LARGEST, NUM_EXTRA, SLOT


@pytest.mark.slow
def test_loading_equals_inserting():
    """The lifetimes of a schedule do not depend on how it came about."""
    rng = np.random.default_rng(5)
    graph = random_graph(rng, 10)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(10))
    for op in rng.integers(0, 9, 12).tolist():
        if not packed.op[op, FIXED]:
            insert_run(packed, profile, op, int(profile.slot_run[profile.slot_run >= 0][-1]))
    runs = check(graph, packed, profile)
    assert len(runs) == 10 + profile.counts[NUM_EXTRA] > 12
    other = make_profile(packed, np.array(runs))
    assert check(graph, packed, other) == runs
    assert other.tree[1, LARGEST] == profile.tree[1, LARGEST]


def test_spreading_the_runs_changes_nothing():
    """Slots are even then; order, lifetimes and bytes are as before."""
    graph = random_graph(np.random.default_rng(3), 12)
    packed = pack_graph(graph.arrays)
    profile = make_profile(packed, np.arange(12))
    runs, largest = check(graph, packed, profile), profile.tree[1, LARGEST]
    rebuild(packed, profile)
    assert check(graph, packed, profile) == runs
    assert profile.tree[1, LARGEST] == largest
    slots = np.sort(profile.run[profile.slot_run[profile.slot_run >= 0], SLOT])
    assert np.ptp(np.diff(slots)) <= 1
