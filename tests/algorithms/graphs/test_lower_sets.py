"""Lower sets of the forward part, as bit masks and as arrays for the dynamic programme."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import ForwardPart, forward_part
from schedsim.algorithms.graphs._lower_sets import all_masks, reachable_masks
from tiers import examples
from training_graphs import random_training_graph

from schedsim import load


def every_lower_set(part: ForwardPart) -> list[frozenset[int]]:
    """All subsets of ops that are closed under predecessors, by trying all subsets."""
    edges = part.edges.tolist()
    found = []
    for size in range(part.num_ops + 1):
        for chosen in map(frozenset, combinations(range(part.num_ops), size)):
            if all(producer in chosen for producer, reader in edges if reader in chosen):
                found.append(chosen)
    return found


def as_set(mask: int) -> frozenset[int]:
    return frozenset(op for op in range(mask.bit_length()) if mask >> op & 1)


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 8))
@settings(max_examples=examples(100))
def test_families(seed, num_forward):
    """All lower sets, found another way; the reachable ones are among them."""
    part = forward_part(random_training_graph(np.random.default_rng(seed), num_forward).arrays)
    found = [as_set(mask) for mask in all_masks(part, 10_000)]
    assert len(found) == len(set(found))
    assert set(found) == set(every_lower_set(part))
    few = [as_set(mask) for mask in reachable_masks(part)]
    assert set(few) <= set(found)
    assert len(few) <= part.num_ops + 2
    assert few[0] == frozenset()
    assert few[-1] == frozenset(range(part.num_ops))


@needs_instances
@pytest.mark.parametrize(
    ("name", "count"), [("ku_unet", 331), ("ku_resnet50", 241), ("ku_densenet", 569)]
)
def test_number_of_lower_sets(name, count):
    """As counted by a plain search over sets."""
    part = forward_part(load(INSTANCES / "dag" / f"{name}_train.json").arrays)
    assert len(all_masks(part, 3000)) == count
