"""What live bytes and runs are called: the names agree with the codes of both kernels."""

from __future__ import annotations

import pytest

from schedsim import Chain, Graph, Op, Schedule, Stage, simulate
from schedsim.simulation.categories import CATEGORIES, RUN_KINDS

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10, 1, 3), Stage("s1", 1, 2, 4, 10, 1, 3)))


def test_store_all_by_hand():
    """a = 4, r = 6, workspaces 1 and 3. B1: a0 a1 r1 a2 r2 d2 d1 = 4+4+6+4+6+4+4, and 3."""
    simulation = simulate(TWO, Schedule.store_all(TWO))
    # F0: a0 a1 r1 + 1; F1: a0 a1 r1 a2 r2 + 1; loss: those + d2; B1: + d1 + 3;
    # B0: a0 a1 r1 d1 + 3.
    assert simulation.memory_bytes.tolist() == [15, 25, 28, 35, 21]
    assert (simulation.peak_bytes, simulation.peak_op) == (35, "B1")
    assert simulation.by_category() == {
        "static": 0,
        "checkpoints": 0,
        "saved": 24,
        "gradients": 8,
        "recompute": 0,
        "transient": 0,
        "workspace": 3,
    }
    assert (simulation.makespan_s, simulation.overhead) == (6, 0)


# Every category has bytes of its own in one of the runs, all of different sizes.
OPS = (
    Op("f", writes={"a": 1}),
    Op("g", reads=("a",), writes={"b": 2}),
    Op("h", reads=("b",), writes={"c": 4}, workspace_bytes=64),
    Op("loss", "loss", reads=("c",), writes={"dc": 8}),
    Op("h'", "backward", reads=("dc", "b"), writes={"db": 16}),
    Op("g'", "backward", reads=("db", "a"), writes={"da": 32}),
)
WITH_ALL = Graph("all", OPS, static_bytes=128)
NAMES = ["f", "g", "h", "loss", "g", "h'", "g'"]


@pytest.mark.parametrize("capacities", [None, {}])
def test_every_category_by_hand(capacities):
    """One stream by the linear pass, and by the engine: the same names for the same bytes."""
    simulation = simulate(WITH_ALL, Schedule.from_names(NAMES), capacities)
    table = {name: row.tolist() for name, row in simulation.timeline.items()}
    assert list(table) == list(CATEGORIES)
    assert table == {
        "static": [128] * 7,
        "checkpoints": [1, 1, 1, 1, 1, 1, 1],  # a: g runs again from it
        "saved": [0] * 7,
        "gradients": [0, 0, 0, 8, 8, 24, 48],
        "recompute": [0, 0, 0, 0, 2, 2, 0],  # the second b
        "transient": [0, 2, 6, 4, 0, 0, 0],  # the first b, for h alone; c
        "workspace": [0, 0, 64, 0, 0, 0, 0],
    }
    kept = simulate(WITH_ALL, Schedule.store_all(WITH_ALL), capacities)
    assert kept.timeline["saved"].tolist() == [1, 3, 3, 3, 3, 1]
    assert kept.timeline["recompute"].max() == kept.timeline["checkpoints"].max() == 0


def test_kinds_of_runs():
    """Only a forward that is not the first of its op is recomputed; messages are copies too."""
    simulation = simulate(WITH_ALL, Schedule.from_names(NAMES))
    assert [RUN_KINDS[kind] for kind in simulation.run_kinds] == [
        *("forward", "forward", "forward", "loss", "recomputed", "backward", "backward")
    ]
    ops = (OPS[0], Op("send", stream="link:0-1", reads=("a",), writes={"s": 1}))
    graph = Graph("g", ops)
    kinds = simulate(graph, Schedule.store_all(graph)).run_kinds
    assert [RUN_KINDS[kind] for kind in kinds] == ["forward", "copy"]


def test_a_backward_that_runs_twice_is_no_recomputation_of_activations():
    """Its outputs are gradients both times."""
    schedule = Schedule.from_names(["F0", "F1", "loss", "B1", "B1", "B0"])
    simulation = simulate(TWO, schedule)
    assert [RUN_KINDS[kind] for kind in simulation.run_kinds][3:5] == ["backward", "backward"]
    assert simulation.timeline["recompute"].max() == 0
