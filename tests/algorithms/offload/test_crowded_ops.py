"""The next cut of a program: an op that its answer has no room for."""

from __future__ import annotations

import numpy as np
from offload_steps import linked_of
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.offload._crowded_ops import crowded_ops
from schedsim.algorithms.offload._window_model import window_program

from schedsim import Graph, Op
from schedsim.plans.effort import Effort
from schedsim.plans.links import Link
from schedsim.plans.offloading import Offloading


def kept_over_two(size: int) -> Graph:
    """x stays from its op to the last; two ops in between need much beside it."""
    ops = (
        Op("x", time_s=1, writes={"x": 4}),
        Op("small", time_s=1, workspace_bytes=2),
        Op("large", time_s=1, workspace_bytes=size),
        Op("loss", "loss", time_s=1, reads=("x",)),
    )
    return Graph("kept over two", ops)


def crowded(graph: Graph, budget: int, cuts: tuple[int, ...]) -> list[int]:
    """The ops found for the answer of the program of `cuts`."""
    table = CutTable(graph, budget, "fixed")
    linked = linked_of(graph, budget, Offloading(Link(1), Link(1)))
    program = window_program(graph, linked, table, cuts, 1.0)
    answer = program.milp.solve(Effort(100.0))
    return crowded_ops(program, answer.x)


def test_the_op_beside_which_a_tensor_stays_is_named():
    """Cut at the first op alone, nothing makes x go; cut there, it does."""
    graph = kept_over_two(7)
    assert crowded(graph, 10, (0,)) == [2]
    assert crowded(graph, 10, (0, 2)) == []
    assert crowded(graph, 11, (0,)) == []


def test_before_the_first_cut_what_is_read_there_has_been_made():
    """So too before the first cut."""
    assert crowded(kept_over_two(7), 10, (3,)) == [2]


def test_a_copy_back_may_be_over_the_room_or_not():
    """Where nothing surely lies there, what may is asked for, and only while it is too much."""
    graph = kept_over_two(7)
    ops = (*graph.ops[:3], Op("again", time_s=1, workspace_bytes=7), graph.ops[3])
    longer = Graph("longer", ops)
    assert crowded(longer, 10, (2,)) == [3]
    assert crowded(longer, 10, (2, 3)) == []
    assert np.all(np.diff(crowded(longer, 10, (0,))) > 0)
