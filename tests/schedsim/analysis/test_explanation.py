"""Why the peak is where it is, and what one change to the schedule would buy."""

from __future__ import annotations

from schedsim import Graph, Op, explain


def test_the_floor_takes_the_smaller_of_two_workspaces():
    """A forward that keeps its bundle may need less than one that keeps nothing."""
    ops = (
        Op("f", writes={"x": 4}, optional=("x",), workspace_bytes=50, saving_workspace_bytes=0),
        Op("b", "backward", reads=("x",)),
    )
    explanation = explain(Graph("g", ops))
    assert explanation.simulation.peak_bytes == 4
    assert explanation.floor_bytes <= 4
