"""Allocators on simulated schedules: what is asked of them, and plans within what they reserve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_graph, random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

import schedsim
from schedsim import Chain, Graph, Op, SchedsimError, Schedule, allocate, simulate
from schedsim.allocators import ALLOCATORS
from schedsim.workloads import WorkloadOptions, build_workload

MIB = 1 << 20


def with_equal_sizes_in_place(graph):
    """The graph with every output in place as large as the input whose storage it takes."""
    sizes, ops = dict(graph.inputs), []
    for op in graph.ops:
        writes = {name: sizes.get(op.in_place.get(name), op.writes[name]) for name in op.writes}
        sizes |= writes
        ops.append(replace(op, writes=writes))
    return replace(graph, ops=tuple(ops))


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 10_000), equal=st.booleans())
def test_requests_are_what_the_simulator_counts(seed, equal):
    """Byte for byte after every event; so the bound is the peak.

    Storage that changes its size as it changes hands is as large as it ever gets.
    """
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(1, 9)))
    if equal:
        graph = with_equal_sizes_in_place(graph)
    simulation = simulate(graph, random_schedule(rng, graph))
    for allocator in ALLOCATORS:
        found = allocate(simulation, allocator)
        counted = simulation.pool_bytes()
        assert (found.requested_bytes >= counted).all()
        if equal:
            assert found.requested_bytes.tolist() == counted.tolist()
            assert found.bound_bytes == simulation.peak_bytes
        assert (found.reserved_bytes >= found.allocated_bytes).all()
        assert (found.allocated_bytes >= found.requested_bytes).all()


def test_streams_are_kept_apart_and_pools_have_their_own_memory():
    """A copy's block serves no kernel, and host memory is not the device's."""
    size = 30 * MIB
    ops = (
        Op("f", writes={"x": size}, time_s=1.0),
        Op(
            "d2h:x",
            reads=("x",),
            writes={"x@host": size},
            stream="d2h",
            required=False,
            pools={"x@host": "host"},
            time_s=1.0,
        ),
        Op(
            "h2d:x", reads=("x@host",), writes={"x": size}, stream="h2d", required=False, time_s=1.0
        ),
        Op("g", writes={"y": size}, time_s=5.0),
        Op("b", "backward", reads=("x", "y"), time_s=1.0),
    )
    graph = Graph("copies", ops)
    names = ["f", "d2h:x", "g", "h2d:x", "b"]
    found = allocate(simulate(graph, Schedule.from_names(names)))
    # x on the stream of f, its copy on that of h2d: the first block is of no use to the second.
    assert found.requests.item_names == ("x", "y", "x")
    assert len(set(found.requests.item_stream.tolist())) == 2
    assert found.bound_bytes == 2 * size
    assert found.peak_reserved_bytes == 3 * size
    host = allocate(simulate(graph, Schedule.from_names(names)), pool="host")
    assert host.bound_bytes == size
    with pytest.raises(SchedsimError, match="no memory pool 'device:1'"):
        allocate(simulate(graph, Schedule.from_names(names)), pool="device:1")


def test_several_steps_run_on_what_the_first_has_cached():
    chain = build_workload(WorkloadOptions(preset="gpt2", batch=2)).workload
    simulation = simulate(chain, Schedule.store_all(chain))
    one, three = allocate(simulation), allocate(simulation, num_steps=3)
    assert three.reserved_bytes.size == 3 * one.reserved_bytes.size
    assert three.requested_bytes.tolist() == one.requested_bytes.tolist() * 3
    assert (three.reserved_bytes[-one.reserved_bytes.size :] >= one.peak_reserved_bytes).all()


def test_static_bytes_are_there_from_the_beginning_to_the_end():
    chain = Chain.from_arrays(
        "static",
        MIB,
        forward_s=[1],
        backward_s=[1],
        output_bytes=[MIB],
        saved_bytes=[MIB],
        static_bytes=33 * MIB,
    )
    found = allocate(simulate(chain, Schedule.store_all(chain)), num_steps=2)
    assert found.bound_bytes == 36 * MIB
    assert (found.requested_bytes >= 33 * MIB).all()
    # 34 for the static bytes, two small segments for three tensors of 1 MiB.
    assert found.peak_reserved_bytes == 38 * MIB


@pytest.fixture(scope="module")
def layers():
    return build_workload(WorkloadOptions(layers=24, hidden=768, heads=12, seq=512)).workload


def test_growing_segments_need_less_than_fixed_ones(layers):
    """What PyTorch's error message advises, on a tight plan."""
    budget = int(0.15 * simulate(layers, Schedule.store_all(layers)).peak_bytes)
    simulation = simulate(layers, schedsim.plan(layers, budget).schedule)
    fixed = allocate(simulation)
    growing = allocate(simulation, expandable_segments=True)
    assert growing.peak_reserved_bytes < fixed.peak_reserved_bytes
