"""The time of a step without copies on several streams, beside the engine's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_graphs import random_stream_graph
from tiers import examples

from schedsim import Graph, InvalidScheduleError, Op, Schedule, simulate
from schedsim.dataflow.store_all_time import store_all_makespan


@given(seed=st.integers(0, 10**9), num_ops=st.integers(2, 14))
@settings(max_examples=examples(200), deadline=None)
def test_one_pass_gives_the_times_of_the_engine(seed, num_ops):
    """To the bit, as both add the same numbers in the same order."""
    graph = random_stream_graph(np.random.default_rng(seed), num_ops)
    required = [op for op in graph.ops if op.required]
    simulation = simulate(graph, Schedule.store_all(graph), {})
    assert store_all_makespan(required, graph.inputs) == simulation.makespan_s


def test_ops_overlap_where_nothing_is_read():
    """Two seconds on the link beside three of computing, and one behind both."""
    ops = (
        Op("f", writes={"x": 8}, time_s=3.0),
        Op("send", writes={"y": 8}, time_s=2.0, stream="net"),
        Op("b", "backward", reads=("x", "y"), time_s=1.0),
    )
    assert Graph("g", ops).store_all_s == 4.0


def test_what_copies_alone_write_is_missing():
    """The step cannot run without its copies, and says what lacks."""
    ops = (
        Op("up", reads=("w",), writes={"v": 8}, stream="h2d", required=False),
        Op("send", writes={"y": 8}, time_s=2.0, stream="net"),
        Op("f", reads=("v", "y"), time_s=3.0),
    )
    graph = Graph("g", ops, inputs={"w": 8}, input_pools={"w": "host"})
    with pytest.raises(InvalidScheduleError, match="f reads v, which does not exist yet") as caught:
        _ = graph.store_all_s
    with pytest.raises(InvalidScheduleError) as simulated:
        simulate(graph, Schedule.store_all(graph))
    assert caught.value.message == simulated.value.message
    assert (caught.value.rule, caught.value.run_index) == ("missing input", 1)
