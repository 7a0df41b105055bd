"""Graphs: what is refused and where, and what is known of tensors, pools and streams."""

from __future__ import annotations

import pytest

from schedsim import Graph, InvalidWorkloadError, Op

F = Op("f", time_s=1.0, writes={"x": 8})
B = Op("b", "backward", time_s=2.0, reads=("x",))
DOWN = Op(
    "down", stream="d2h", reads=("x",), writes={"x@": 8}, pools={"x@": "host"}, required=False
)
UP = Op("up", stream="h2d", reads=("x@",), writes={"x": 8}, required=False)


@pytest.mark.parametrize(
    ("ops", "more", "path", "says"),
    [
        ((), {}, "ops", "at least one op"),
        ((UP,), {"inputs": {"x@": 8}}, "ops", "at least one required op"),
        ((F, F), {}, "ops[1].name", "also of ops[0]"),
        ((F, Op("g", writes={"x": 8})), {}, "ops[1].writes.x", "also written by ops[0]"),
        ((F,), {"inputs": {"x": 8}}, "ops[0].writes.x", "also written by inputs"),
        ((F, B), {"inputs": {"": 8}}, "inputs", "the name is empty"),
        ((F, B), {"inputs": {"y": -8}}, "inputs.y", "negative"),
        ((F, B), {"static_bytes": 0.5}, "static_bytes", "not a whole number"),
        ((F, B), {"results": "x"}, "results", "is one text"),
        ((F, B), {"results": ("x", "y")}, "results[1]", "unknown tensor 'y'"),
        ((F, B, DOWN), {"results": ("x@",)}, "results[0]", "written by copies alone"),
        ((F, B), {"pool_static_bytes": {"device": 4}}, "pool_static_bytes.device", "its own field"),
        ((F, B), {"pool_static_bytes": {"host": -4}}, "pool_static_bytes.host", "negative"),
        ((F, B), {"input_pools": {"y": "host"}}, "input_pools", "no input 'y'"),
        ((F, Op("g", reads=("y",))), {}, "ops[1].reads[0]", "unknown tensor 'y'"),
        ((Op("g", reads=("w",)),), {"inputs": {"w": 8}, "input_pools": {"w": "host"}},
         "ops[0].reads[0]", "where no device computes"),
        ((B, F), {}, "ops[0].reads[0]", "which stands later"),
        ((Op("g", reads=("x",), writes={"y": 8}), Op("f", reads=("y",), writes={"x": 8})), {},
         "ops[0].reads[0]", "a cycle"),
        ((Op("g", reads=("x",), writes={"x": 8}),), {}, "ops[0].reads[0]", "a cycle"),
        ((F, DOWN, Op("up", stream="h2d", reads=("x@",), writes={"x": 9}, required=False)), {},
         "ops[2].writes.x", "has 9 bytes in pool 'device' here, and 8 in 'device' in ops[0]"),
        ((F, Op("up", stream="h2d", reads=("x",), writes={"x": 8}, required=False)), {},
         "ops[1].writes.x", "read by the same op"),
        ((F, Op("g", reads=("x",), stream="compute:1", writes={"y": 8}, in_place={"y": "x"})), {},
         "ops[1].in_place", "live in different pools"),
        ((F, Op("g", writes={"y": 2**53 - 8}), B), {}, "ops", "all sizes together"),
    ],
)  # fmt: skip
def test_a_wrong_graph_is_named_by_its_place(ops, more, path, says):
    """One line: where, and what; of a tensor that two ops have, both."""
    with pytest.raises(InvalidWorkloadError) as caught:
        Graph("g", ops, **more)
    assert caught.value.path == path
    assert says in caught.value.message


def test_a_longer_cycle_and_an_order_that_is_wrong_are_told_apart():
    """Through two tensors; where no path leads back, the order alone is wrong."""
    first = Op("a", reads=("z",), writes={"x": 1})
    middle, last = Op("m", reads=("x",), writes={"y": 1}), Op("c", reads=("y",), writes={"z": 1})
    with pytest.raises(InvalidWorkloadError, match="depends on this op: a cycle") as caught:
        Graph("g", (first, middle, last))
    assert not caught.value.hint
    free = Op("c", writes={"z": 1})
    with pytest.raises(InvalidWorkloadError, match="stands later") as caught:
        Graph("g", (first, middle, free))
    assert "order in which they can run" in caught.value.hint


def test_what_is_known_of_tensors():
    """A copy that writes a tensor again is not its producer; inputs have none."""
    graph = Graph(
        "g", (F, DOWN, UP, B), inputs={"w": 3, "v": 4}, input_pools={"v": "host"}, results=["x"]
    )
    assert [graph.producer(t) for t in ("x", "x@", "w")] == [0, 1, None]
    assert [graph.size_of(t) for t in ("x", "x@", "w")] == [8, 8, 3]
    assert [graph.pool_of(t) for t in ("x", "x@", "w", "v")] == ["device", "host", "device", "host"]
    assert (graph.op_index("b"), graph.num_ops, graph.results) == (3, 4, ("x",))
    assert [op.name for op in graph] == list(graph.op_names)
    assert graph.graph is graph
    for ask in (graph.size_of, graph.pool_of, graph.op_index):
        with pytest.raises(KeyError):
            ask("nobody")


@pytest.mark.parametrize(
    ("ops", "more", "one"),
    [
        ((F, B), {}, True),
        ((F, DOWN, B), {}, False),
        ((Op("f", writes={"x": 8}, pools={"x": "host"}),), {}, False),
        ((F, B), {"pool_static_bytes": {"host": 4}}, False),
        ((F, B), {"inputs": {"w": 1}, "input_pools": {"w": "host"}}, False),
        ((F, B), {"inputs": {"w": 1}, "input_pools": {"w": "device"}}, True),
    ],
)
def test_one_stream_in_one_memory(ops, more, one):
    """Whatever is elsewhere makes it several."""
    assert Graph("g", ops, **more).one_stream is one


def test_times_count_what_must_run():
    """Copies need not: neither the sum nor the busiest stream has their 9 s."""
    slow = Op("slow", stream="d2h", time_s=9.0, reads=("x",), writes={"y": 8}, required=False)
    graph = Graph("g", (F, slow, B))
    assert (graph.store_all_s, graph.busiest_stream_s) == (3.0, 3.0)
    # Two devices: one computes 1 s and then 2 s beside the 4 s of the other.
    other = Op("o", stream="compute:1", time_s=4.0)
    graph = Graph("g", (F, other, B))
    assert (graph.store_all_s, graph.busiest_stream_s) == (4.0, 4.0)


def test_a_caller_who_changes_what_was_passed_does_not_change_the_graph():
    """Lists and dicts are copied."""
    ops, inputs, results = [F, B], {"w": 1}, ["x"]
    graph = Graph("g", ops, inputs=inputs, results=results)
    ops.pop()
    inputs["w"] = 2
    results.append("y")
    assert (graph.num_ops, graph.inputs, graph.results) == (2, {"w": 1}, ("x",))
