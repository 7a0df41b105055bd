"""Links and the copies over them."""

from __future__ import annotations

import pytest

from schedsim import (
    Chain,
    Graph,
    InvalidWorkloadError,
    Op,
    SchedsimError,
    Schedule,
    Stage,
    simulate,
)
from schedsim.files.document import from_dict, to_dict
from schedsim.files.workload_files import workload_hash
from schedsim.plans.links import Link, with_copies

LINK = Link(4.0)
TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10), Stage("s1", 1, 2, 4, 4)))


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "4", True])
def test_a_link_needs_a_bandwidth(rate):
    """More than zero, finite, a number."""
    with pytest.raises(InvalidWorkloadError, match="bytes_per_s"):
        Link(rate)


def test_copies_stand_behind_the_ops():
    """All activations by default, gradients not; indices of ops and tensors stay what they were."""
    graph = with_copies(TWO, d2h=LINK, h2d=Link(2.0))
    assert graph.ops[: TWO.graph.num_ops] == TWO.graph.ops
    names = TWO.graph.arrays.tensor_names
    assert graph.arrays.tensor_names[: len(names)] == names
    copied = [name.removeprefix("d2h:") for name in graph.op_names if name.startswith("d2h:")]
    assert copied == ["a0", "a1", "r1", "a2"]
    down, up = graph.ops[graph.op_index("d2h:r1")], graph.ops[graph.op_index("h2d:r1")]
    assert (down.time_s, down.stream, down.pool_of("r1@host"), down.required) == (
        1.5,
        "d2h",
        "host",
        False,
    )
    assert (up.time_s, up.stream, up.writes, up.pool_of("r1")) == (3.0, "h2d", {"r1": 6}, "device")
    assert graph.store_all_s == TWO.store_all_s == graph.busiest_stream_s
    assert Schedule.store_all(graph).names == list(TWO.op_names)


def test_a_graph_with_copies_survives_its_file():
    """required, pools and rewritten tensors come back; the hash knows them."""
    graph = with_copies(TWO, d2h=LINK, h2d=LINK, tensors=["a1"])
    again = from_dict(to_dict(graph))
    assert again == graph
    assert workload_hash(again) == workload_hash(graph) != workload_hash(TWO.graph)
    assert "required" not in to_dict(graph)["ops"][0]
    assert to_dict(graph)["ops"][-1]["required"] is False
    static = Graph("g", TWO.graph.ops, {"a0": 4}, 3, (), {"host": 7}, {"a0": "device"})
    assert from_dict(to_dict(static)) == static


def test_without_copies_in_the_schedule_nothing_changes():
    """Store-all on the graph with copies and on the one without."""
    graph = with_copies(TWO, d2h=LINK, h2d=LINK)
    plain, beside = (simulate(g, Schedule.store_all(TWO)) for g in (TWO, graph))
    assert beside.memory_bytes.tolist() == plain.memory_bytes.tolist()
    assert beside.makespan_s == plain.makespan_s
    assert beside.peak_by_pool == {"device": plain.peak_bytes, "host": 0}
    assert beside.num_recomputed == 0


@pytest.mark.parametrize(
    ("tensors", "error"), [(["a9"], "unknown tensor 'a9'"), (["a1@host"], "unknown tensor")]
)
def test_tensors_that_are_not_there(tensors, error):
    """The name is said."""
    with pytest.raises(InvalidWorkloadError, match=error):
        with_copies(TWO, d2h=LINK, h2d=LINK, tensors=tensors)


def test_only_the_device_is_copied_from():
    """A tensor on the host is there already; a second copy of a tensor has the same name."""
    once = with_copies(TWO, d2h=LINK, h2d=LINK, tensors=["a1"])
    with pytest.raises(SchedsimError, match="lives in pool 'host'"):
        with_copies(once, d2h=LINK, h2d=LINK, tensors=["a1@host"])
    with pytest.raises(InvalidWorkloadError, match="duplicate name 'd2h:a1'"):
        with_copies(once, d2h=LINK, h2d=LINK, tensors=["a1"])


WRITE = Op("f", writes={"x": 8})


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (Op("g", writes={"x": 8}), "only a copy"),
        (Op("g", writes={"x": 8}, stream="h2d"), "only a copy"),
        (Op("g", writes={"x": 9}, stream="h2d", required=False), "9 bytes in pool 'device'"),
        (
            Op("g", writes={"x": 8}, stream="h2d", required=False, pools={"x": "host"}),
            "in pool 'host' here",
        ),
        (
            Op("g", reads=("x",), writes={"x": 8}, stream="h2d", required=False),
            "read by the same op",
        ),
    ],
)
def test_who_may_write_a_tensor_again(second, error):
    """A copy of the same size in the same pool, and nobody else."""
    with pytest.raises(InvalidWorkloadError) as caught:
        Graph("g", (WRITE, second))
    assert error in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.path == "ops[1].writes.x"


def test_ops_that_compute_must_run():
    """An op on a compute stream that need not run is no copy: no planner could leave it out."""
    spare = Op("g", time_s=3, required=False)
    with pytest.raises(InvalidWorkloadError, match="only a copy need not run") as caught:
        Graph("g", (WRITE, spare))
    assert caught.value.path == "ops[1].required"


def test_devices_do_not_compute_on_the_host():
    """What was only kept on the host is not read; results need a required op; pools are checked."""
    down = Op("d", reads=("x",), writes={"y": 8}, stream="d2h", required=False, pools={"y": "host"})
    with pytest.raises(InvalidWorkloadError, match="host memory") as caught:
        Graph("g", (WRITE, down, Op("b", "backward", reads=("y",))))
    assert caught.value.path == "ops[2].reads[0]"
    with pytest.raises(InvalidWorkloadError, match="copies alone"):
        Graph("g", (WRITE, down), results=("y",))
    with pytest.raises(InvalidWorkloadError, match="at least one required op"):
        Graph("g", (Op("d", stream="d2h", required=False),))
    with pytest.raises(InvalidWorkloadError, match="own field"):
        Graph("g", (WRITE,), pool_static_bytes={"device": 1})
    with pytest.raises(InvalidWorkloadError, match="no input 'y'"):
        Graph("g", (WRITE,), input_pools={"y": "host"})
    relu = Op("r", reads=("x",), writes={"y": 8}, in_place={"y": "x"}, stream="compute:1")
    with pytest.raises(InvalidWorkloadError, match="different pools"):
        Graph("g", (WRITE, relu))
