"""The tree of live bytes beside a plain array."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from schedsim.algorithms.graphs._live_bytes import add_range, max_range, peak_slot, value_at
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._profile_record import LARGEST, NUM_SLOTS


def test_ranges_are_added_to_and_looked_at():
    """Sums, maxima and the first place of the largest, after every change."""
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 6)
    profile = make_profile(pack_graph(graph.arrays), np.arange(6), room=1.0)
    num = int(profile.counts[NUM_SLOTS])
    plain = np.array([value_at(profile, slot) for slot in range(num)])
    for _ in range(200):
        low, high = np.sort(rng.integers(0, num - 1, 2)).tolist()
        change = int(rng.integers(-50, 50))
        add_range(profile, low, high, change)
        plain[low : high + 1] += change
        low, high = np.sort(rng.integers(0, num - 1, 2)).tolist()
        assert max_range(profile, low, high) == plain[low : high + 1].max()
        assert profile.tree[1, LARGEST] == plain.max()
        assert peak_slot(profile) == int(np.argmax(plain))
    assert max_range(profile, 3, 2) < 0
