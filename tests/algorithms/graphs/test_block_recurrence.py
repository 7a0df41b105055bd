"""The recurrence over a line of blocks with several options each, on memory slots, compiled."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms.graphs._block_recurrence import needed_runs

from schedsim import Graph, Op


def test_runs_that_nobody_needs_are_found():
    """A repeat whose output is written again before it is read goes; a run that is once stays."""
    graph = Graph(
        "g",
        (
            Op("a", writes={"x": 1}),
            Op("note", reads=("x",), once=True),
            Op("b", reads=("x",), writes={"y": 1}),
            Op("c", "backward", reads=("x", "y")),
        ),
    )
    needed = needed_runs(np.array([0, 1, 2, 0, 1, 0, 2, 3]), graph.arrays)
    assert needed.tolist() == [True, True, True, False, False, True, True, True]
