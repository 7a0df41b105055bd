"""Schedules of little memory as starts."""

from __future__ import annotations

import numpy as np
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs._lean import leanest_work
from schedsim.algorithms.graphs._lean_starts import LeanStarts
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._walker import GraphWalker
from schedsim.algorithms.graphs.bounds import least_memory_bytes

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered


def starts_of(graph: Graph, effort: Effort) -> LeanStarts:
    return LeanStarts(graph, pack_graph(graph.arrays), least_memory_bytes(graph)[0], False, effort)


def test_what_was_begun_is_there_once():
    """A walker's start counts as work; what nobody goes on from does not."""
    graph = layered(60, 0)
    lines = [np.arange(graph.num_ops, dtype=np.int64)]
    for counts in (True, False):
        effort = Effort(1.0)
        starts = starts_of(graph, effort)
        with Pool[GraphWalker](effort, 1, 0.0) as pool:
            assert starts.take(pool) is None
            starts.begin(pool, lines)
            lean = starts.take(pool) if counts else starts.end(pool)
            assert lean is starts.found
            assert lean.peak_bytes < simulate(graph, Schedule.store_all(graph)).peak_bytes
            assert starts.take(pool) is starts.end(pool) is None
            assert starts.found is lean
        assert bool(effort.spent) == counts


def test_the_leanest_is_a_start_where_the_work_is_enough():
    graph = layered(60, 0)
    lines = [np.arange(graph.num_ops, dtype=np.int64)]
    for work, enough in ((20 * leanest_work(graph), True), (2 * leanest_work(graph), False)):
        effort = Effort(work)
        starts = starts_of(graph, effort)
        with Pool[GraphWalker](effort, 1, 0.0) as pool:
            lean = starts.take_leanest(pool, lines)
        assert (lean is not None) == (starts.found is not None) == (effort.spent > 0) == enough
    starts.find_leanest(lines)
    assert starts.found is not None
