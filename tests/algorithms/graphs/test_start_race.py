"""Which schedule of the bound to go on from."""

from __future__ import annotations

import numpy as np
import pytest
from schedsim.algorithms._pool import Pool
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._start_race import race, starts_from_bound
from schedsim.algorithms.graphs._walker import SMALL_MOVES, GraphWalker

from schedsim import Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import layered

GRAPH = layered(40, 0)
STORE_ALL = np.arange(GRAPH.num_ops)


def with_repeats(count: int) -> np.ndarray:
    """The graph's order, and the first op `count` times more."""
    return np.concatenate([np.zeros(count, np.int64), STORE_ALL])


def test_schedules_below_and_above_the_bound_come_in_turn():
    lines = [with_repeats(count) for count in (1, 0, 4, 2, 3)]
    second = simulate(GRAPH, Schedule(GRAPH.op_names, with_repeats(2))).makespan_s
    found = starts_from_bound(GRAPH, lines, second)
    assert [line.size - GRAPH.num_ops for line in found] == [1, 4, 0, 2, 3]
    (first,) = starts_from_bound(GRAPH, lines, 2 * second)
    assert first is lines[0]


def test_the_best_of_the_short_annealings_is_taken():
    """From the schedule that fits the way is shorter than from one far above the limit."""
    limit = simulate(GRAPH, Schedule.store_all(GRAPH)).peak_bytes - GRAPH.static_bytes
    packed, made = pack_graph(GRAPH.arrays), []

    def make(lines):
        for number, line in enumerate(lines):
            rules = (limit, False)
            made.append(
                GraphWalker.of(
                    GRAPH, packed, line, number=number, seed=0, rules=rules, kind=SMALL_MOVES
                )
            )
        return made

    effort = Effort(1.0)
    with Pool[GraphWalker](effort, 2, 0.0) as pool:
        start = race(pool, [with_repeats(3), STORE_ALL], make)
    assert len(made) == 2
    fastest = min(walker.best_s for walker in made)
    found = simulate(GRAPH, Schedule(GRAPH.op_names, start))
    assert found.makespan_s == pytest.approx(fastest, rel=1e-12)
    assert 0.3 < effort.spent < 0.5


def test_with_too_little_work_for_several_the_first_is_taken():
    with Pool[GraphWalker](Effort(0.05), 1, 0.0) as pool:
        start = race(pool, [with_repeats(1), STORE_ALL], lambda lines: [])
    assert start.size == GRAPH.num_ops + 1
