"""The schedule of little memory: far below store-all, and the same for all op times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from schedsim.algorithms.graphs._lean import lean_schedule, leanest_schedule
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs.bounds import least_memory_bytes
from schedsim.algorithms.graphs.chen_articulation import chen_articulation
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Schedule, simulate
from schedsim.workloads.synthetic_graphs import wide


def lean(graph: Graph, *, free: bool = False):
    line = np.arange(graph.num_ops)
    least = least_memory_bytes(graph)[0]
    return lean_schedule(graph, pack_graph(graph.arrays), [line], least, free)


def leanest(graph: Graph, **options):
    line = np.arange(graph.num_ops)
    least = least_memory_bytes(graph)[0]
    return leanest_schedule(graph, pack_graph(graph.arrays), [line], least, False, **options)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_below_all_that_it_starts_from(seed, free):
    """A true simulation of a legal schedule; with a fixed order, first runs keep it."""
    graph = random_training_graph(np.random.default_rng(seed), 10)
    found = lean(graph, free=free)
    runs = found.schedule.bind(graph).tolist()
    assert simulate(graph, Schedule(graph.op_names, runs)).peak_bytes == found.peak_bytes
    assert found.peak_bytes >= least_memory_bytes(graph)[0]
    assert found.peak_bytes <= simulate(graph, Schedule.store_all(graph)).peak_bytes
    if not free:
        assert list(dict.fromkeys(runs)) == list(range(graph.num_ops))


def test_a_chain_needs_a_handful_of_tensors():
    """Store-all keeps 24; the schedule needs a handful, and no more than Chen's segments take."""
    graph = unit_training_chain(24)
    peak = lean(graph).peak_bytes
    assert peak <= 7
    assert not chen_articulation(graph, peak - 1).feasible


def test_op_times_do_not_matter():
    """So that a budget named once is met again where the times are measured anew."""
    graph = random_training_graph(np.random.default_rng(7), 10)
    ops = [replace(op, time_s=op.time_s * 3 + i) for i, op in enumerate(graph.ops)]
    slower = replace(graph, ops=tuple(ops))
    first, second = lean(graph), lean(slower)
    assert first.schedule == second.schedule
    assert first.makespan_s < second.makespan_s


def test_it_is_found_once_for_each_kind_of_order():
    """Kept with the graph."""
    graph = unit_training_chain(5)
    assert lean(graph) is lean(graph)
    assert lean(graph, free=True) is lean(graph, free=True)
    assert lean(graph, free=True) is not lean(graph)


@pytest.mark.parametrize("looks", range(0, 60, 7))
def test_a_descent_that_is_stopped_counts_for_nothing(looks):
    """Wherever it is stopped: the peak is of a complete descent, or of the line, and not kept."""
    graph = random_training_graph(np.random.default_rng(2), 10)
    line = np.arange(graph.num_ops)
    least, packed = least_memory_bytes(graph)[0], pack_graph(graph.arrays)
    left = iter([False] * looks)
    stopped = lean_schedule(graph, packed, [line], least, False, is_over=lambda: next(left, True))
    whole = lean(graph)
    assert simulate(graph, stopped.schedule).peak_bytes == stopped.peak_bytes
    assert whole.peak_bytes <= stopped.peak_bytes
    if not looks:
        assert stopped.schedule == Schedule.store_all(graph)
    if stopped is not whole:
        fresh = lean_schedule(graph, packed, [line], least, False)
        assert fresh is whole


def test_small_moves_go_clearly_below_it():
    """On wide graphs by a twentieth and more; legal, and first runs keep the order."""
    graph = wide(200, 1)
    found = leanest(graph)
    assert found.peak_bytes < 0.95 * lean(graph).peak_bytes
    runs = found.schedule.bind(graph).tolist()
    assert simulate(graph, Schedule(graph.op_names, runs)).peak_bytes == found.peak_bytes
    assert list(dict.fromkeys(runs)) == list(range(graph.num_ops))
    assert leanest(graph) is found


def test_the_leanest_is_the_same_for_all_op_times_and_in_a_fresh_graph():
    """Neither times nor what was found before matter."""
    graph = wide(80, 2)
    ops = [replace(op, time_s=op.time_s * 3 + i) for i, op in enumerate(graph.ops)]
    assert leanest(graph).schedule == leanest(replace(graph, ops=tuple(ops))).schedule


def test_small_moves_that_are_stopped_count_for_nothing():
    """The lean schedule is there by then, and the leanest is found when it is asked for again."""
    graph = wide(80, 2)
    first = lean(graph)
    left = iter([False] * 5)
    assert leanest(graph, is_over=lambda: next(left, True)) is first
    assert leanest(graph).peak_bytes < first.peak_bytes
