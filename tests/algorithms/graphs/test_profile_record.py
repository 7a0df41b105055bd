"""Random numbers of a profile, and the work that a core does on it."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_graph
from schedsim.algorithms.graphs._memory_profile import make_profile
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._profile_record import WORK_PER_UNIT, random_unit, work_per_unit


def test_random_numbers_are_those_of_the_seed():
    """Even over [0, 1), the same again, and others for another seed."""
    packed = pack_graph(random_graph(np.random.default_rng(0), 3).arrays)
    one, same, other = (make_profile(packed, np.arange(3), seed=seed) for seed in (1, 1, 2))
    numbers = [random_unit(one) for _ in range(2000)]
    assert numbers == [random_unit(same) for _ in range(2000)]
    assert numbers[0] != random_unit(other)
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    assert np.mean(numbers) == pytest.approx(0.5, abs=0.02)


def test_long_trees_take_longer():
    """A tree that fits the nearest caches does the most."""
    assert work_per_unit(64) == work_per_unit(8192) == WORK_PER_UNIT
    assert work_per_unit(131072) == pytest.approx(WORK_PER_UNIT / 2)
