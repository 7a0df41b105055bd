"""Synthetic graphs."""

from __future__ import annotations

import pytest
from schedsim.algorithms.graphs.bounds import least_memory_bytes

from schedsim import SchedsimError, Schedule, simulate
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS

FORWARD_ONLY = ("layered", "wide")


@pytest.mark.parametrize("name", list(SYNTHETIC_GRAPHS))
def test_they_depend_on_the_seed_alone(name):
    """The same twice, another with another seed, and about as many ops as asked for."""
    graph = SYNTHETIC_GRAPHS[name](200, 1)
    assert graph == SYNTHETIC_GRAPHS[name](200, 1) != SYNTHETIC_GRAPHS[name](200, 2)
    assert 150 <= graph.num_ops <= 300


@pytest.mark.parametrize("name", list(SYNTHETIC_GRAPHS))
def test_there_is_room_for_a_planner(name):
    """Store-all needs far more than the op that needs most, or half as much again of one huge."""
    graph = SYNTHETIC_GRAPHS[name](200, 0)
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    assert least_memory_bytes(graph)[0] < (0.75 if name == "one-huge-op" else 0.5) * peak


@pytest.mark.parametrize("name", [name for name in SYNTHETIC_GRAPHS if name not in FORWARD_ONLY])
def test_every_forward_op_has_a_backward_one(name):
    """It takes twice the time, and reads what the forward one read."""
    graph = SYNTHETIC_GRAPHS[name](140, 0)
    ops = {op.name: op for op in graph}
    forward = [op for op in graph if op.phase == "forward"]
    assert len(ops) == 2 * len(forward) + 1
    for op in forward:
        after = ops["b" + op.name[1:]]
        assert after.time_s == 2 * op.time_s
        assert set(op.reads) <= set(after.reads)


@pytest.mark.parametrize("name", [name for name in SYNTHETIC_GRAPHS if name not in FORWARD_ONLY])
def test_too_few_ops_are_refused(name):
    with pytest.raises(SchedsimError, match="num_ops 5") as caught:
        SYNTHETIC_GRAPHS[name](5, 0)
    assert caught.value.hint
