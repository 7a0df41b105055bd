"""Variants of op graphs: each is one tensor, encoded where it pays, and runs as a plain graph."""

from __future__ import annotations

import pytest

from schedsim import Schedule, simulate
from schedsim.dataflow.variants import ChosenVariant, resolve
from schedsim.workloads import Roofline, WorkloadOptions, build_workload, get_device
from schedsim.workloads.devices import Device
from schedsim.workloads.graph_variants import LEAST_BYTES, with_graph_variants
from schedsim.workloads.ops import ModelRecord, OpRecord, StageRecord, to_graph

# A byte a second, and arithmetic that takes no time: times are bytes moved.
BYTES = Roofline(Device("bytes", {"fp16": 1e20, "fp32": 1e20, "bf16": 1e20}, 1.0, 1, "none"))
SIZE = 2 * LEAST_BYTES


def model(size: int) -> ModelRecord:
    stage = StageRecord(
        "s",
        (OpRecord("up", ("in",), {"u": size}), OpRecord("gelu", ("u",), {"out": size})),
        (
            OpRecord("gelu'", ("d.out", "u"), {"d.u": size}),
            OpRecord("up'", ("d.u", "in"), {"d.in": size}),
        ),
    )
    return ModelRecord("m", size, (stage,))


def offered(size: int, allow) -> dict:
    graph = with_graph_variants(to_graph(model(size), BYTES), model(size), allow, "fp16", BYTES)
    return {variant.name: variant for variant in graph.variants}


def test_one_tensor_encoded_by_hand():
    """s.u of 4096 elements: 4096 bytes and 16 groups of 4; the times are what is moved."""
    found = offered(SIZE, ["quantize"])
    assert list(found) == ["int8 s.u", "int4 s.u"]
    encode, decode = found["int8 s.u"].adds
    small = SIZE // 2 + 16 * 4
    assert (encode.reads, dict(encode.writes)) == (("s.u",), {"s.u.int8": small})
    assert (decode.phase, decode.reads) == ("backward", ("s.u.int8",))
    assert dict(decode.writes) == {"s.u.int8.again": SIZE}
    assert encode.time_s == decode.time_s == SIZE + small
    assert found["int8 s.u"].instead == {"s.gelu'": {"s.u": "s.u.int8.again"}}


@pytest.mark.parametrize(
    ("size", "allow", "names"),
    [
        (LEAST_BYTES, ["precision"], ["fp8 s.u"]),
        (LEAST_BYTES - 2, ["precision"], []),
        (LEAST_BYTES - 2, ["approx"], ["s: regelu2 gelu"]),
        (SIZE, ["share"], []),
        (SIZE, [], []),
    ],
)
def test_what_is_offered(size, allow, names):
    """Small tensors are not worth two ops; what changes the op itself is, however small."""
    assert list(offered(size, allow)) == names


def test_names_of_records_become_those_of_the_graph():
    """The input of a stage is the output of the one before it, or that of the whole model."""
    found = offered(SIZE, ["approx"])["s: regelu2 gelu"]
    assert found.instead == {"s.gelu'": {"s.u": "s.u.bits"}}
    assert found.writes == {"s.gelu": {"s.u.bits": SIZE // 2 // 4}}
    graph = build_workload(
        WorkloadOptions(layers=2, attention="flash", granularity="op", allow=("share",))
    ).workload
    # The first norm of each layer shares with the layer's own output of the norm.
    shared = [v for v in graph.variants if v.kind == "share"]
    assert shared
    for variant in shared:
        for table in variant.instead.values():
            for old, new in table.items():
                assert graph.producer(new) is not None
                assert old == "input" or graph.producer(old) is not None
    assert any("layer0.out" in table for v in shared for table in v.instead.values()) or any(
        old.startswith("layer0") for v in shared for t in v.instead.values() for old in t
    )


def test_each_alone_makes_a_step_that_runs_and_keeps_less():
    """Every variant that is offered to two layers is legal, and no slower than it says."""
    options = {"layers": 2, "granularity": "op", "hidden": 256, "heads": 4, "seq": 64}
    kinds = ("quantize", "precision", "approx", "share")
    graph = build_workload(WorkloadOptions(**options, allow=kinds)).workload
    plain = simulate(graph, Schedule.store_all(graph))
    assert len(graph.variants) > 20
    for variant in graph.variants:
        run = resolve(graph, [ChosenVariant(variant)])
        found = simulate(run, Schedule.store_all(run))
        added = sum(op.time_s for op in variant.adds)
        assert found.makespan_s == pytest.approx(plain.makespan_s + added, rel=1e-12)
        assert run.num_ops == graph.num_ops + len(variant.adds)
    assert Roofline(get_device("a100-80gb")).time_s(0, 1, "fp16") > 0
