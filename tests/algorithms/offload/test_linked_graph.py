"""From a workload and a link to what the kernels read, and back to names."""

from __future__ import annotations

import numpy as np
from chains import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_steps import random_offloading, random_tokens, tokens_of
from schedsim.algorithms.offload._linked_graph import link_graph, schedule_tokens, token_names
from tiers import examples

from schedsim import Graph, Op, Schedule
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading

ONE = Graph("one", (Op("f", writes={"x": 12, "y": 0}),), {"in": 6}, static_bytes=5)


def test_copies_take_their_bytes_over_the_bandwidth_and_the_latency():
    """Each direction its own; a tensor without bytes still waits for the latency."""
    linked = link_graph(ONE, 100, Offloading(Link(3, 0.5), Link(4)))
    assert list(ONE.arrays.tensor_names) == ["in", "x", "y"]
    assert linked.out_s.tolist() == [2.5, 4.5, 0.5]
    assert linked.back_s.tolist() == [1.5, 3.0, 0.0]


def test_rooms_are_what_budgets_leave():
    """Static bytes are off the device's; no limit, and more than 64 bits, are large numbers."""
    one = link_graph(ONE, 100, Offloading(Link(1), Link(1), 7))
    assert (one.device_room, one.host_room) == (95, 7)
    free = link_graph(ONE, 10**30, Offloading(Link(1), Link(1)))
    assert 10**15 < free.device_room < 2**62
    assert 10**15 < free.host_room < 2**62
    low = link_graph(ONE, -(10**30), Offloading(Link(1), Link(1), 10**30))
    assert -(2**62) < low.device_room < -(10**15)
    assert 10**15 < low.host_room < 2**62


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 8))
def test_tokens_are_named_as_the_engine_names_them(seed, num):
    """Runs, copies to the host and copies back: from names to numbers and to the same names."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    names = random_tokens(rng, graph)
    random_offloading(rng)
    assert token_names(graph, tokens_of(graph, names)) == names


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 6))
def test_schedules_are_read_back_as_tokens(seed, num):
    """With copies both ways, repeats, and names that stand in any order."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num)
    tokens = tokens_of(graph, random_tokens(rng, graph))
    schedule = Schedule.from_names(token_names(graph, tokens))
    assert schedule_tokens(graph, schedule).tolist() == tokens.tolist()
