"""The dynamic programme over lower sets behind `kusumoto`."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import ForwardPart, forward_part
from schedsim.algorithms.graphs._lower_set_kernel import best_sequence, least_limit, list_growth
from schedsim.algorithms.graphs._lower_sets import all_masks, lower_sets, reachable_masks
from tiers import examples
from training_graphs import random_training_graph


def as_set(mask: int) -> frozenset[int]:
    return frozenset(op for op in range(mask.bit_length()) if mask >> op & 1)


def every_strategy(part: ForwardPart, family: list[frozenset[int]]) -> list[tuple[int, float, int]]:
    """(peak, time recomputed, bytes stored) of each sequence of sets, from the paper's formulas."""
    edges, size, times = part.edges.tolist(), part.op_bytes, part.op_time_s
    everything = frozenset(range(part.num_ops))
    found = []

    def boundary(chosen: frozenset[int]) -> set[int]:
        return {a for a, b in edges if a in chosen and b not in chosen}

    def grow(last: frozenset[int], kept: frozenset[int], peak: int, again: float) -> None:
        if last == everything:
            found.append((peak, again, int(size[list(kept)].sum()) if kept else 0))
            return
        for larger in family:
            if not last < larger:
                continue
            between = larger - last
            readers = {b for a, b in edges if a in larger and b not in larger}
            beside = {a for a, b in edges if b in readers and a not in larger}
            now = sum(int(size[v]) for v in kept) + 2 * sum(int(size[v]) for v in between)
            now += sum(int(size[v]) for v in readers) + sum(int(size[v]) for v in beside)
            dropped = between - boundary(larger)
            more = again + sum(float(times[v]) for v in dropped)
            grow(larger, kept | boundary(larger), max(peak, now), more)

    grow(frozenset(), frozenset(), 0, 0.0)
    return found


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 6), exact=st.booleans())
@settings(max_examples=examples(60))
def test_the_programme_equals_enumeration(seed, num_forward, exact):
    """Least time, and the time at the least bytes stored, within every limit that matters."""
    part = forward_part(random_training_graph(np.random.default_rng(seed), num_forward).arrays)
    masks = all_masks(part, 10_000) if exact else reachable_masks(part)
    strategies = every_strategy(part, [as_set(mask) for mask in masks])
    sets = lower_sets(part, masks)
    growth = list_growth(sets.arrays)
    most = 2 * int(sets.set_bytes[-1])
    limits = sorted({strategy[0] for strategy in strategies})
    if most:
        assert least_limit(growth, -1, most) == limits[0]
    unit = math.gcd(*(int(t) for t in part.op_time_s)) or 1
    for limit in [limits[0] - 1, *limits]:
        within = [strategy for strategy in strategies if strategy[0] <= limit]
        for most_time in (False, True):
            sequence = best_sequence(growth, int(sets.set_steps[-1]), limit, most_time)
            if not within:
                assert sequence.size == 0
                continue
            assert (sequence[0], sequence[-1]) == (len(masks) - 1, 0)
            taken = _time_of(sequence[::-1].tolist(), growth) * unit
            least_bytes = min(stored for _, _, stored in within)
            if most_time:
                assert taken == min(t for _, t, stored in within if stored == least_bytes)
            else:
                assert taken == min(t for _, t, _ in within)


def _time_of(sequence: list[int], growth) -> int:
    total = 0
    for i, j in pairwise(sequence):
        of_set = range(growth.start[i], growth.start[i + 1])
        total += int(next(growth.again[e] for e in of_set if growth.to[e] == j))
    return total
