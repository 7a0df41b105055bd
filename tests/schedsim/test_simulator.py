"""The simulator: the memory rule by hand, and against a slow reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import INSTANCES, needs_instances, random_graph, random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

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
from schedsim.simulation.simulator import memory_at_sizes

TWO = Chain("two", 4, (Stage("s0", 1, 2, 4, 10, 1, 3), Stage("s1", 1, 2, 4, 10, 1, 3)))


@given(seed=st.integers(0, 10**9), num_ops=st.integers(1, 12), scale=st.integers(0, 5))
@settings(max_examples=examples(100))
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
