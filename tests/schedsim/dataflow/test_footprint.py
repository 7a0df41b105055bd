"""What a run of an op takes by itself, by hand and against simulated peaks."""

from __future__ import annotations

from schedsim import Graph, Schedule, simulate
from schedsim.dataflow.footprint import least_own_bytes, own_bytes
from schedsim.dataflow.op import Op

GRAPH = Graph(
    "g",
    (
        Op("f", writes={"x": 10}, workspace_bytes=3),
        # r is made only where somebody reads it; y may lie where x lay.
        Op("g", reads=("x",), writes={"y": 10, "r": 7}, optional=("r",), in_place={"y": "x"},
           workspace_bytes=4, saving_workspace_bytes=2),
        Op("loss", "loss", reads=("y",), writes={"d": 5}),
    ),
    inputs={"in": 1},
)  # fmt: skip


def test_by_hand():
    """f: 10 + 3. g: 10 + 10 + the smaller workspace, 2. loss: 10 + 5."""
    assert own_bytes(GRAPH).tolist() == [13, 22, 15]
    assert least_own_bytes(GRAPH).tolist() == [13, 12, 15]  # y takes the bytes of x


def test_no_step_has_a_smaller_peak():
    """The largest of them is a floor of every schedule's peak."""
    peak = simulate(GRAPH, Schedule.store_all(GRAPH)).peak_bytes
    assert least_own_bytes(GRAPH).max() <= peak
