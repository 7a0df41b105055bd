"""The live-memory profile of a schedule beside what the simulator says of it."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms.graphs._live_bytes import max_range, peak_slot
from schedsim.algorithms.graphs._memory_profile import store_runs
from schedsim.algorithms.graphs._packed_graph import PackedGraph
from schedsim.algorithms.graphs._profile_record import (
    EXCESS,
    LARGEST,
    LIMIT,
    OP,
    SUMMED,
    Profile,
)

from schedsim import Graph, Schedule, simulate


def exact(graph: Graph) -> bool:
    """Whether the profile charges the graph to the byte, and not a little more.

    It does not count on bytes that an optional output, or one in the place of a result, saves.
    """
    for op in graph.ops:
        for output, source in op.in_place.items():
            if output in op.optional or source in graph.results:
                return False
    return True


def check(graph: Graph, packed: PackedGraph, profile: Profile) -> list[int]:
    """Compare every run's live bytes with the simulator's; the schedule."""
    buffer = np.zeros(profile.run.shape[0], np.int64)
    runs = buffer[: store_runs(packed, profile, buffer)].copy()
    simulation = simulate(graph, Schedule(graph.op_names, runs))
    ours = [
        max_range(profile, slot, slot) + graph.static_bytes
        for slot, run in enumerate(profile.slot_run)
        if run >= 0 and profile.run[run, OP] < graph.num_ops
    ]
    if exact(graph):
        assert ours == simulation.memory_bytes.tolist()
    else:
        assert (np.array(ours) >= simulation.memory_bytes).all()
    assert profile.tree[1, LARGEST] + graph.static_bytes == max(ours)
    assert profile.slot_run[peak_slot(profile)] >= 0
    if profile.counts[SUMMED]:
        over = np.array(ours) - graph.static_bytes - profile.counts[LIMIT]
        assert profile.counts[EXCESS] == over[over > 0].sum()
    assert profile.total_s[0] == pytest.approx(simulation.makespan_s)
    return runs.tolist()
