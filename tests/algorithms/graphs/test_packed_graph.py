"""The graph of the kernels beside the graph."""

from __future__ import annotations

from schedsim.algorithms.graphs._packed_graph import (
    FIXED,
    NTH,
    PRODUCER,
    READERS,
    READS,
    SAVING,
    SHARES,
    SIZE,
    UNBUILT,
    WORKSPACE,
    WRITES,
    pack_graph,
)

from schedsim import Graph, Op


def test_ops_tensors_and_the_two_virtual_ops():
    """Inputs are written by the op before all, results are read by the op behind all."""
    ops = (
        Op("a", time_s=1, reads=("in",), writes={"x": 4, "y": 6}, workspace_bytes=3),
        Op(
            "b",
            time_s=2,
            reads=("x",),
            writes={"z": 3},
            in_place={"z": "x"},
            once=True,
        ),
        Op("c", time_s=3, reads=("y", "z"), writes={"out": 5}),
    )
    graph = Graph("packed", ops, inputs={"in": 7}, results=("out",))
    packed, names = pack_graph(graph.arrays), list(graph.arrays.tensor_names)
    x, y, z, given, out = (names.index(name) for name in ("x", "y", "z", "in", "out"))

    def listed(op: int, column: int) -> list[int]:
        return packed.flat[packed.op[op, column] : packed.op[op + 1, column]].tolist()

    assert packed.time_s.tolist() == [1, 2, 3, 0, 0]
    assert packed.op[:3, WORKSPACE].tolist() == [3, 0, 0]
    assert packed.op[:3, SAVING].tolist() == [0, 0, 0]
    assert packed.op[:5, FIXED].tolist() == [0, 1, 0, 1, 1]
    assert [listed(op, READS) for op in range(5)] == [[given], [x], [y, z], [], [out]]
    assert [listed(op, WRITES) for op in range(5)] == [[x, y], [z], [out], [given], []]
    assert packed.tensor[[x, y, z, given, out], PRODUCER].tolist() == [0, 0, 1, 3, 2]
    assert packed.tensor[[x, y], NTH].tolist() == [0, 1]
    assert packed.tensor[[x, y, z, given, out], SIZE].tolist() == [4, 6, 3, 7, 5]
    assert packed.tensor[[x, given], UNBUILT].tolist() == [0, 1]
    readers = packed.flat[packed.tensor[z, READERS] : packed.tensor[z + 1, READERS]]
    assert readers.tolist() == [2]
    shares = packed.share[packed.op[1, SHARES] : packed.op[2, SHARES]]
    assert shares.tolist() == [[x, 3]]
