"""Bytes of memory pools after each event, by category: by hand, on one stream and on several."""

from __future__ import annotations

import numpy as np
import pytest
from four_stages import CHAIN
from offloaded_stages import offloaded

from schedsim import Graph, Op, Schedule, simulate
from schedsim.simulation.pool_bytes import newest_instances


def test_what_is_copied_keeps_its_category():
    """On its way to the host and back, what a backward op reads is saved, and a gradient one."""
    graph, schedule = offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    host = simulate(graph, schedule).pool_timeline("host")
    assert host["saved"].max() == 6
    assert sum(row.max() for row in host.values()) == 6
    graph, schedule = offloaded("F0 F1 loss d2h:d2 B1 B0", tensors=["d2"])
    assert simulate(graph, schedule).pool_timeline("host")["gradients"].max() == 4


def test_each_event_of_one_stream_by_hand():
    """f f g b: x twice, once used; y takes over x; the workspace lives as long as its run.

    Events are starts and ends in turn. The first x is read by nobody and dies with its run.
    """
    ops = (
        Op("f", writes={"x": 8}, workspace_bytes=3),
        Op("g", reads=("x",), writes={"y": 6}, in_place={"y": "x"}),
        Op("b", "backward", reads=("y",), writes={"z": 5}),
    )
    graph = Graph("g", ops, inputs={"w": 2}, static_bytes=1, results=("z",))
    simulation = simulate(graph, Schedule.from_names(["f", "f", "g", "b"]))
    rows = simulation.pool_timeline()
    assert rows["static"].tolist() == [1] * 8
    assert rows["workspace"].tolist() == [3, 0, 3, 0, 0, 0, 0, 0]
    assert rows["recompute"].tolist() == [0, 0, 8, 8, 8, 0, 0, 0]
    assert rows["saved"].tolist() == [0, 0, 0, 0, 0, 6, 6, 0]
    assert rows["transient"].tolist() == [8, 0, 0, 0, 0, 0, 0, 0]
    assert rows["gradients"].tolist() == [0, 0, 0, 0, 0, 0, 5, 5]  # a result stays
    assert simulation.pool_bytes().tolist() == [12, 1, 12, 9, 9, 7, 12, 6]
    made, freed, shared = simulation.instance_events
    names = [simulation.instance_name(i) for i in range(made.size)]
    # Nobody reads w: it is never there, and is freed by what makes it.
    assert names == ["w", "x", "x", "y", "z"]
    assert made.tolist() == [-1, 0, 2, 4, 6]
    assert freed.tolist() == [-1, 1, 5, 7, 8]
    assert shared.tolist() == [0, 0, 0, 6, 0]


def test_pools_are_apart():
    """What goes to the host is counted there from the start of its copy on, and nowhere twice."""
    graph, schedule = offloaded("F0 d2h:r1 F1 loss B1 h2d:r1 B0")
    simulation = simulate(graph, schedule)
    host, device = simulation.pool_bytes("host"), simulation.pool_bytes("device")
    starts = [int(event) // 2 for event in simulation.events if event % 2 == 0]
    first = simulation.events.tolist().index(2 * 1)
    assert host[:first].max(initial=0) == 0
    assert host[first] == 6
    assert host.max() == 6
    assert host[-1] == 0  # it came back, and is gone
    assert device.max() == simulation.peak_by_pool["device"]
    assert len(starts) == len(schedule)
    with pytest.raises(KeyError, match="hots"):
        simulation.pool_bytes("hots")


def test_the_newest_instance_of_each_tensor():
    """The last of several instances; -1 for none, as for an optional copy that does not run."""
    schedule = Schedule.from_names([*CHAIN.op_names[:6], "F1", "F2", "B2", "B1", "F0", "B0"])
    simulation = simulate(CHAIN, schedule)
    tensors = simulation._instances[0]
    arrays = CHAIN.graph.arrays
    newest = newest_instances(arrays, tensors)
    for t, name in enumerate(arrays.tensor_names):
        places = np.flatnonzero(tensors == t)
        assert newest[t] == places[-1]
        assert places.size == (2 if name in ("a1", "a2", "a3", "r1", "r2", "r3") else 1)
    graph, without = offloaded("F0 F1 loss B1 B0")
    simulation = simulate(graph, without)
    newest = newest_instances(graph.arrays, simulation._instances[0])
    missing = [t for t, at in zip(graph.arrays.tensor_names, newest, strict=True) if at < 0]
    assert missing == [t for t in graph.arrays.tensor_names if t.endswith("host")]
    assert missing
