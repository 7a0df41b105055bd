"""Which of many points in three dimensions no other one beats; compiled."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.pipelines._pareto_points import undominated


@pytest.mark.parametrize("seed", range(20))
def test_undominated(seed):
    """Against the definition, point by point."""
    rng = np.random.default_rng(seed)
    held, need = rng.integers(0, 8, (2, 30))
    keep = undominated(held, need)
    for p in range(30):
        beaten = any(held[q] <= held[p] and need[q] <= need[p] for q in range(p) if keep[q])
        assert keep[p] == (not beaten)
