"""A graph as flat arrays, by hand."""

from __future__ import annotations

from schedsim import Graph
from schedsim.dataflow.op import Op


def test_the_arrays_of_a_small_graph():
    """Tensors: inputs first, then outputs in op order; lists of lists in compressed form."""
    arrays = Graph(
        "g",
        (
            Op("f", time_s=1.5, reads=("in",), writes={"x": 10, "r": 7}, optional=("r",)),
            Op("loss", "loss", reads=("x",), writes={"d": 5}, in_place={"d": "x"}),
            Op("b", "backward", reads=("d", "r"), workspace_bytes=4, once=True),
        ),
        inputs={"in": 2},
    ).arrays
    assert arrays.tensor_names == ("in", "x", "r", "d")
    assert arrays.tensor_bytes.tolist() == [2, 10, 7, 5]
    assert arrays.tensor_producer.tolist() == [-1, 0, 0, 1]
    assert arrays.tensor_optional.tolist() == [False, False, True, False]
    assert arrays.tensor_takes_over.tolist() == [-1, -1, -1, 1]
    assert arrays.read_start.tolist() == [0, 1, 2, 4]
    assert arrays.read_tensor.tolist() == [0, 1, 3, 2]
    assert arrays.write_start.tolist() == [0, 2, 3, 3]
    assert arrays.num_writes.tolist() == [2, 1, 0]
    assert arrays.op_time_s.tolist() == [1.5, 0.0, 0.0]
    assert arrays.op_phase.tolist() == [0, 1, 2]
    assert arrays.op_once.tolist() == [False, False, True]
    assert arrays.op_workspace_bytes.tolist() == [0, 0, 4]
    assert (arrays.stream_names, arrays.pool_names) == (("compute",), ("device",))
