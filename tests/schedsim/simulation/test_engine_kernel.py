"""Parts of the engine's kernel: its heaps, what a sequence binds, and names of what is copied."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offloaded_stages import offloaded

from schedsim import Graph, Op, Schedule, simulate
from schedsim.simulation._engine_kernel import _pop, _push


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=40))
def test_the_heap_gives_the_least_first(steps):
    """As Python's own does: `None` takes one out; of equal keys the one of the least item."""
    keys, items, size = np.zeros(41), np.zeros(41, np.int64), 0
    expected: list[tuple[float, int]] = []
    for item, key in enumerate(steps):
        if key is not None:
            _push(keys, items, size, float(key), -item % 7 * 100 + item)
            size += 1
            heapq.heappush(expected, (float(key), -item % 7 * 100 + item))
        elif size:
            assert _pop(keys, items, size) == heapq.heappop(expected)[1]
            size -= 1
    while size:
        assert _pop(keys, items, size) == heapq.heappop(expected)[1]
        size -= 1


def test_each_run_reads_the_newest_instance():
    """x is made twice: g reads the first, h the second; the copy follows the run before it."""
    ops = (
        Op("f", writes={"x": 1}),
        Op("g", reads=("x", "w"), writes={"y": 1}),
        Op("down", stream="d2h", reads=("y",), writes={"y@": 1}, pools={"y@": "host"},
           required=False),
        Op("h", reads=("x",)),
    )  # fmt: skip
    graph = Graph("g", ops, inputs={"w": 1})
    order = simulate(graph, Schedule.from_names(["f", "g", "f", "down", "h"]), {}).course.order
    # Instances: w, x of run 0, y of run 1, x of run 2, y@ of run 3.
    assert order.writer.tolist() == [-1, 0, 1, 2, 3]
    assert order.made.tolist() == [1, 2, 3, 4, 5, 5]
    assert order.input_start.tolist() == [0, 0, 2, 2, 3, 4]
    assert order.input_instance.tolist() == [1, 0, 2, 3]
    assert order.issued_run[order.issued_start[3] : order.issued_start[4]].tolist() == [2]
    assert order.line_start.tolist() == [0, 4, 5]
    assert order.line.tolist() == [0, 1, 2, 4, 3]


def test_runs_that_end_together_free_their_memory_before_the_next_starts():
    """At 1 s both a and b end; c needs what either held alone, and starts at 1 s all the same."""
    ops = (
        Op("a", time_s=1.0, workspace_bytes=5),
        Op("b", stream="d2h", time_s=1.0, writes={"x": 5}),
        Op("c", time_s=1.0, workspace_bytes=10),
    )
    graph = Graph("g", ops)
    simulation = simulate(graph, Schedule.store_all(graph), {"device": 10})
    assert simulation.start_s.tolist() == [0, 0, 1]
    assert simulation.peak_by_pool["device"] == 10


def test_a_request_that_does_not_fit_is_taken_back_whole():
    """g has two outputs and a workspace: while it waits for 30 bytes, none of them is counted."""
    ops = (
        Op("f", time_s=2.0, workspace_bytes=20),
        Op("g", stream="link:0-1", time_s=1.0, writes={"x": 10, "y": 10}, workspace_bytes=10),
        Op("h", reads=("x", "y"), time_s=1.0),
    )
    graph = Graph("g", ops)
    simulation = simulate(graph, Schedule.store_all(graph), {"device": 40})
    assert simulation.start_s.tolist() == [0, 2, 3]
    assert simulation.wait_causes == ["nothing", "memory", "input"]
    # Events: f starts, f ends, g starts, g ends, h starts, h ends.
    assert simulation.pool_bytes().tolist() == [20, 0, 30, 20, 20, 0]


def test_what_is_copied_twice_is_named_by_what_is_made_of_it_last():
    """a0 goes to the host and back, and F0 is run again from it: a checkpoint all the way."""
    graph, schedule = offloaded("F0 d2h:a0 F1 loss B1 h2d:a0 F0 B0", tensors=["a0"])
    simulation = simulate(graph, schedule)
    host = simulation.pool_timeline("host")
    assert host["checkpoints"].max() == 4
    assert sum(int(row.max()) for row in host.values()) == 4
