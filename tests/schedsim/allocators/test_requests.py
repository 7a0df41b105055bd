"""What a schedule asks of an allocator, in order: the storage of tensors, and workspaces."""

from __future__ import annotations

from schedsim import Graph, Op, Schedule, allocate, simulate
from schedsim.allocators.requests import requests_of

MIB = 1 << 20


def test_outputs_in_place_keep_the_block_of_their_input():
    ops = (
        Op("f", writes={"x": 8 * MIB}),
        Op("relu", reads=("x",), writes={"y": 8 * MIB}, in_place={"y": "x"}),
        Op("b", "backward", reads=("y",), workspace_bytes=3 * MIB),
    )
    graph = Graph("in-place", ops)
    simulation = simulate(graph, Schedule.store_all(graph))
    requests = requests_of(simulation)
    assert requests.item_names == ("x", "workspace of b")
    assert requests.items.tolist() == [0, 1, ~1, ~0]
    assert requests.events.tolist() == [0, 4, 5, 5]
    found = allocate(simulation)
    assert found.requested_bytes.tolist() == simulation.pool_bytes().tolist()
