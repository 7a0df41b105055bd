"""Lifetimes and live bytes on one stream: by hand, and against a slow reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import random_graph, random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_simulator import slow_memory
from tiers import examples

from schedsim import Chain, Graph, InvalidScheduleError, Op, Schedule, Stage, simulate
from schedsim.simulation.simulator import CATEGORIES

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10, 1, 3), Stage("s1", 1, 2, 4, 10, 1, 3)))


@pytest.mark.slow
@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 12))
@settings(max_examples=examples(1000))
def test_memory_equals_the_slow_reference(seed, num_ops):
    """Bytes of every run, peak, makespan and the sum of categories on random graphs."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    schedule = random_schedule(rng, graph)
    simulation = simulate(graph, schedule)
    expected = slow_memory(graph, schedule.names)
    assert simulation.memory_bytes.tolist() == expected
    assert simulation.peak_bytes == max(expected)
    assert simulation.peak_run == expected.index(max(expected))
    times = {op.name: op.time_s for op in graph.ops}
    assert simulation.makespan_s == math.fsum(times[name] for name in schedule.names)
    total = sum(simulation.timeline[name] for name in CATEGORIES)
    assert total.tolist() == expected
    if not any(op.in_place for op in graph.ops):
        for run in range(len(schedule)):
            live = sum(tensor.size_bytes for tensor in simulation.live_tensors(run))
            workspace = simulation.timeline["workspace"][run]
            assert live + graph.static_bytes + workspace == expected[run]


def test_recomputing_drops_the_bundle_by_hand():
    """F0 keeps nothing the first time: r1 is not materialised, and a1 stays for B1 alone."""
    simulation = simulate(TWO, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"]))
    # F0: a0 a1 + 1; F1: a0 a1 a2 r2 + 1; loss: + d2; B1: + d1 + 3; F0: a0 d1 a1 r1 + 1; B0: + 3.
    assert simulation.memory_bytes.tolist() == [9, 19, 22, 29, 19, 21]
    assert simulation.num_recomputed == 1
    at_recompute = simulation.by_category(4)
    assert (at_recompute["checkpoints"], at_recompute["recompute"]) == (4, 10)


def test_a_saving_run_has_a_workspace_of_its_own():
    """F0 keeps nothing first (workspace 9), then its bundle (workspace 2); F1 keeps it at once."""
    stage = Stage("s0", 1, 2, 4, 10, 9, 3, saving_workspace_bytes=2)
    chain = Chain("own", 4, (stage, replace(stage, name="s1")))
    simulation = simulate(chain, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"]))
    # As in the example above, with 9 instead of 1 once and 2 instead of 1 twice.
    assert simulation.memory_bytes.tolist() == [17, 20, 22, 29, 20, 21]


def test_an_unread_output_dies_with_its_op_and_a_result_does_not():
    """x is 5 bytes, nobody reads it: only its own run is charged, unless it is a result."""
    ops = (Op("f", writes={"x": 5}), Op("g", writes={"y": 1}))
    assert simulate(
        Graph("g", ops), Schedule([op.name for op in ops], [0, 1])
    ).memory_bytes.tolist() == [5, 1]
    kept = Graph("g", ops, results=("x",))
    assert simulate(kept, Schedule.store_all(kept)).memory_bytes.tolist() == [5, 6]


def test_in_place_takes_over_only_a_dying_input():
    """relu over x: 8 bytes while it runs if x dies there, 16 where x is read again."""
    ops = (Op("f", writes={"x": 8}), Op("relu", reads=("x",), writes={"y": 8}, in_place={"y": "x"}))
    last = Op("b", "backward", reads=("y",))
    graph = Graph("g", (*ops, last))
    assert simulate(graph, Schedule.store_all(graph)).memory_bytes.tolist() == [8, 8, 8]
    again = Graph("g", (*ops, Op("b", "backward", reads=("y", "x"))))
    assert simulate(again, Schedule.store_all(again)).memory_bytes.tolist() == [8, 16, 16]


def test_once_may_not_repeat():
    """An op marked once that runs again is refused at its second run."""
    graph = Graph("g", (Op("f", writes={"x": 1}), Op("add", reads=("x",), once=True)))
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(graph, Schedule(graph.op_names, [0, 1, 0, 1]))
    assert (caught.value.rule, caught.value.run_index) == ("once", 3)


def test_the_storage_of_a_result_is_not_taken_over():
    """x is a result: even the very last run needs room for y beside it, 16 bytes and not 8."""
    ops = (Op("f", writes={"x": 8}), Op("relu", reads=("x",), writes={"y": 8}, in_place={"y": "x"}))
    graph = Graph("g", ops)
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes == 8
    kept = replace(graph, results=("x",))
    assert simulate(kept, Schedule.store_all(kept)).peak_bytes == 16
