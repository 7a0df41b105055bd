"""Options of a block."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs._block_options import BlockOption, pareto


def test_options_beaten_in_every_respect_are_dropped():
    """(time, kept, forward, backward): the third is worse than the first everywhere."""
    none = np.zeros(0, np.int64)
    options = [
        BlockOption(none, none, *row)
        for row in [(1.0, 9, 9, 9), (2.0, 5, 9, 9), (1.5, 9, 9, 9), (3.0, 5, 8, 9)]
    ]
    assert [option.time_s for option in pareto(options)] == [1.0, 2.0, 3.0]
