"""The tree of live bytes beside a plain array."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from schedsim.algorithms.graphs._live_bytes import (
    add_range,
    excess_over,
    max_range,
    next_over,
    peak_slot,
    sum_excess,
    value_at,
)
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


def test_what_is_above_a_limit_is_summed():
    """After every change; without the sum, what is above it at the peak."""
    rng = np.random.default_rng(1)
    profile = make_profile(pack_graph(random_graph(rng, 6).arrays), np.arange(6), room=1.0)
    num, peak = int(profile.counts[NUM_SLOTS]), int(profile.tree[1, LARGEST])
    assert excess_over(profile, peak - 3) == 3
    assert excess_over(profile, peak + 3) == 0
    limit = peak // 2
    sum_excess(profile, limit)
    for _ in range(100):
        low, high = np.sort(rng.integers(0, num - 1, 2)).tolist()
        add_range(profile, low, high, int(rng.integers(-20, 25)))
        plain = np.array([value_at(profile, slot) for slot in range(num)])
        assert profile.live.tolist() == plain.tolist()
        assert excess_over(profile, limit) == np.maximum(0, plain - limit).sum()
        over, slot = np.flatnonzero(plain > limit), int(rng.integers(num))
        if over.size:
            assert next_over(profile, slot) == min(over, key=lambda at: (at - slot) % num)
        else:
            assert next_over(profile, slot) == slot
