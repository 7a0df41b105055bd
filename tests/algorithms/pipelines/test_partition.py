"""Where to cut the layers of a chain into stages, one a device, under a memory budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from schedsim.algorithms.pipelines.partition import least_largest


def all_cuts(num_layers: int, num_stages: int):
    """Every partition."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield (0, *inner, num_layers)


@pytest.mark.parametrize("seed", range(10))
def test_least_largest_against_all_cuts(seed):
    """The programme over cuts finds the least largest cost of all partitions."""
    rng = np.random.default_rng(seed)
    cost = rng.random((3, 7, 8)) + (rng.random((3, 7, 8)) < 0.1) * 1e9
    found = least_largest(7, 3, lambda v, lo, hi: float(cost[v, lo, hi]))
    best = min(max(cost[v, cuts[v], cuts[v + 1]] for v in range(3)) for cuts in all_cuts(7, 3))
    assert found.cost == best
    assert max(cost[v, found.cuts[v], found.cuts[v + 1]] for v in range(3)) == best
    assert least_largest(7, 3, lambda v, lo, hi: 1.0, below=1.0) is None
