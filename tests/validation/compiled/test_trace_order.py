"""What a search has moved for nothing goes back, and what it has moved for a budget does not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from schedsim.validation.compiled.trace_order import nearer_the_trace

from schedsim import Graph, Op, Schedule, simulate


def branches(num=3):
    """Branches of two ops each, whose large results the second op makes small."""
    ops = []
    for k in range(num):
        ops += [
            Op(name=f"large{k}", reads=("x",), writes={f"a{k}": 10}, time_s=1.0),
            Op(name=f"small{k}", reads=(f"a{k}",), writes={f"b{k}": 1}, time_s=1.0),
        ]
    return Graph("branches", tuple(ops), {"x": 1}, 0, tuple(f"b{k}" for k in range(num)))


def peak(graph, runs):
    return simulate(graph, Schedule(graph.op_names, runs)).peak_bytes


def test_a_shuffled_schedule_goes_back_to_the_trace():
    """Its peak falls, here."""
    graph = branches()
    runs = [4, 0, 2, 3, 5, 1]
    assert nearer_the_trace(graph, runs) == list(range(6))
    assert peak(graph, range(6)) < peak(graph, runs)


def test_what_waits_for_room_goes_on_waiting():
    """The trace makes all large results first."""
    graph = branches()
    graph = Graph(
        graph.name, graph.ops[::2] + graph.ops[1::2], graph.inputs, 0, tuple(graph.results)
    )
    runs = [0, 3, 1, 4, 2, 5]
    assert nearer_the_trace(graph, runs) == runs
    assert peak(graph, runs) < peak(graph, range(6))


def test_repeats_stay_where_they_are():
    """A first run moves alone; each op runs as often as before."""
    graph = branches()
    runs = [2, 0, 1, 3, 4, 5, 2, 3]
    assert nearer_the_trace(graph, runs) == [0, 1, 2, 3, 4, 5, 2, 3]
