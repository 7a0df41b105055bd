"""Options of a block."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._block_options import BlockOption, block_classes, pareto
from schedsim.algorithms.graphs._graph_blocks import find_blocks
from training_graphs import unit_training_chain

from schedsim.plans.effort import Effort


def test_options_beaten_in_every_respect_are_dropped():
    """(time, kept, forward, backward): the third is worse than the first everywhere."""
    none = np.zeros(0, np.int64)
    options = [
        BlockOption(none, none, *row)
        for row in [(1.0, 9, 9, 9), (2.0, 5, 9, 9), (1.5, 9, 9, 9), (3.0, 5, 8, 9)]
    ]
    assert [option.time_s for option in pareto(options)] == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_block_whose_turn_comes_too_late_is_stored():
    """However small the counted work, the first replays are made; the clock ends them, too."""
    line = find_blocks(unit_training_chain(12))
    late = block_classes(line, effort=Effort(1.0, time_limit_s=0.0), seed=0)
    early = block_classes(line, effort=Effort(1e-9), seed=0)
    assert {len(each.options) for each in late.values()} == {1}
    assert late.keys() == early.keys()
    assert max(len(each.options) for each in early.values()) > 1
