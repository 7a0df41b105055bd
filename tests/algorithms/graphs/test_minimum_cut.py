"""Which forward tensors to save so that the rest can be recomputed: a minimum cut by bytes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs import _minimum_cut
from schedsim.algorithms.graphs._forward_part import ForwardPart, forward_part
from schedsim.algorithms.graphs._minimum_cut import cheapest_saved
from tiers import examples
from training_graphs import random_training_graph


def suffices(part: ForwardPart, saved: set[int], may_recompute: np.ndarray) -> bool:
    """Whether all that is read after the part is saved, or made of saved tensors by such ops."""
    arrays = part.arrays
    have = set(saved)
    for op in range(part.num_ops):
        reads = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]].tolist()
        if may_recompute[op] and have.issuperset(reads):
            have |= set(arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]])
    wanted = np.flatnonzero(part.read_after & (arrays.tensor_producer < part.num_ops))
    return have.issuperset(wanted.tolist())


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 5))
@settings(max_examples=examples(100))
def test_the_cut_is_the_least_that_suffices(seed, num_forward):
    """By trying all sets of tensors."""
    rng = np.random.default_rng(seed)
    graph = random_training_graph(rng, num_forward)
    part = forward_part(graph.arrays)
    may_recompute = rng.random(part.num_ops) < 0.7
    sizes = np.where(graph.arrays.tensor_result, 0, graph.arrays.tensor_bytes)
    found = set(np.flatnonzero(cheapest_saved(part, may_recompute)).tolist())
    assert suffices(part, found, may_recompute)
    known = np.flatnonzero(graph.arrays.tensor_producer < part.num_ops).tolist()
    least = min(
        int(sizes[list(chosen)].sum())
        for count in range(len(known) + 1)
        for chosen in combinations(known, count)
        if suffices(part, set(chosen), may_recompute)
    )
    assert int(sizes[list(found)].sum()) == least


def test_scaled_cuts_are_near_the_least(monkeypatch):
    """With a thousand units for all bytes, within a unit per tensor of the exact cut."""
    for seed in range(20):
        graph = random_training_graph(np.random.default_rng(seed), 30)
        part = forward_part(graph.arrays)
        exact = cheapest_saved(part, np.ones(part.num_ops, dtype=bool))
        sizes = np.where(graph.arrays.tensor_result, 0, graph.arrays.tensor_bytes)
        monkeypatch.setattr(_minimum_cut, "MAX_CAPACITY", sizes.size + 100)
        rough = cheapest_saved(part, np.ones(part.num_ops, dtype=bool))
        monkeypatch.undo()
        unit = -(-int(sizes.sum()) // 100)
        assert sizes[exact].sum() <= sizes[rough].sum() <= sizes[exact].sum() + unit * sizes.size
        assert suffices(part, set(np.flatnonzero(rough)), np.ones(part.num_ops, dtype=bool))
