"""The simulator: the memory rule by hand, and against a slow reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_graph, random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_simulator import slow_memory

from schedsim import (
    Chain,
    Graph,
    InvalidScheduleError,
    InvalidWorkloadError,
    Op,
    Schedule,
    Stage,
    load,
    simulate,
)
from schedsim.simulation.simulator import CATEGORIES, memory_at_sizes

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10, 1, 3), Stage("s1", 1, 2, 4, 10, 1, 3)))


@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 12))
@settings(max_examples=1000)
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


@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 12), scale=st.integers(0, 5))
@settings(max_examples=100)
def test_memory_at_other_sizes_is_that_of_the_graph_with_these_sizes(seed, num_ops, scale):
    """Whose ops and tensors are the same; workspaces are one number an op."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, num_ops)
    one = [replace(op, saving_workspace_bytes=None) for op in graph.ops]
    graph = replace(graph, ops=tuple(one))
    schedule = random_schedule(rng, graph)
    ops = tuple(
        replace(
            op,
            writes={name: scale * size + len(name) for name, size in op.writes.items()},
            workspace_bytes=scale * op.workspace_bytes,
        )
        for op in graph.ops
    )
    inputs = {name: scale * size for name, size in graph.inputs.items()}
    other = replace(graph, ops=ops, inputs=inputs)
    memory = memory_at_sizes(
        graph, schedule, other.arrays.tensor_bytes, other.arrays.op_workspace_bytes
    )
    assert memory.tolist() == simulate(other, schedule).memory_bytes.tolist()


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


@pytest.mark.parametrize(
    ("names", "rule", "run"),
    [
        (["F0", "loss", "F1", "B1", "B0"], "missing input", 1),
        (["F0", "F1", "loss", "B1"], "required op", None),
        (["F0", "F1", "loss", "B1", "B2"], "unknown op", 4),
        (["B0"], "missing input", 0),
    ],
)
def test_illegal_schedules_name_the_rule_and_the_run(names, rule, run):
    """Each rule of legality, with the place where it is broken."""
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(TWO, Schedule.from_names(names))
    assert (caught.value.rule, caught.value.run_index) == (rule, run)
    assert caught.value.hint


def test_once_may_not_repeat():
    """An op marked once that runs again is refused at its second run."""
    graph = Graph("g", (Op("f", writes={"x": 1}), Op("add", reads=("x",), once=True)))
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(graph, Schedule(graph.op_names, [0, 1, 0, 1]))
    assert (caught.value.rule, caught.value.run_index) == ("once", 3)


def test_large_sizes_do_not_overflow():
    """Sums up to 2^53 - 1 stay exact: 500 tensors of 16 TiB live at once; more is refused."""
    big = (2**53 - 1) // 500
    graph = _many_alive(big)
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes == 500 * big
    with pytest.raises(InvalidWorkloadError, match="all sizes together"):
        _many_alive(big + 1)


def _many_alive(size: int) -> Graph:
    ops = [Op(f"f{i}", writes={f"x{i}": size}) for i in range(500)]
    ops.append(Op("b", "backward", reads=tuple(f"x{i}" for i in range(500))))
    return Graph("big", tuple(ops))


def test_the_storage_of_a_result_is_not_taken_over():
    """x is a result: even the very last run needs room for y beside it, 16 bytes and not 8."""
    ops = (Op("f", writes={"x": 8}), Op("relu", reads=("x",), writes={"y": 8}, in_place={"y": "x"}))
    graph = Graph("g", ops)
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes == 8
    kept = replace(graph, results=("x",))
    assert simulate(kept, Schedule.store_all(kept)).peak_bytes == 16


@needs_instances
def test_store_all_of_the_shared_instances():
    """Peaks and times of chains and graphs equal those found by others."""
    import json

    truth = json.loads((INSTANCES / "chain" / "truth.json").read_text())
    for name, known in truth.items():
        chain = load(INSTANCES / "chain" / f"{name}.json")
        simulation = simulate(chain, Schedule.store_all(chain))
        assert simulation.peak_bytes == known["store_all_bytes"]
        assert simulation.makespan_s == known["store_all_s"]
    for row in json.loads((INSTANCES / "dag" / "best-known.json").read_text()):
        file = INSTANCES / "dag" / f"{row['graph']}.json"
        if file.exists():
            graph = load(file)
            simulation = simulate(graph, Schedule.store_all(graph))
            assert simulation.peak_bytes == row["store_all_peak_bytes"]
            assert simulation.makespan_s == pytest.approx(row["store_all_s"])


def test_printing_says_the_essentials():
    """Peak, the op that sets it, and the overhead."""
    text = str(simulate(TWO, Schedule.from_names(["F0", "F1", "loss", "B1", "F0", "B0"])))
    assert "29 B" in text
    assert "(B1)" in text
    assert "+16.67%" in text
