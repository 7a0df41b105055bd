"""Synthetic families: every member is a workload that runs, and the same for the same seed."""

import pytest
from rematlib import script

from schedsim import Schedule, simulate

families = script("families")
SMALL = {
    "uniform_chain": {"stages": 4, "ratio": 2},
    "residual": {"blocks": 3},
    "u_net": {"levels": 2},
    "inception": {"modules": 1},
    "recurrent": {"steps": 3, "layers": 2},
    "encoder_decoder": {"layers": 2},
}


@pytest.mark.parametrize("name", sorted(families.FAMILIES))
def test_a_member_runs_and_is_made_again(name):
    sizes = SMALL.get(name, {"stages": 6} if "chain" in name else {"ops": 8})
    made = [families.FAMILIES[name](**sizes, seed=seed) for seed in (1, 1)]
    assert made[0] == made[1]
    run = simulate(made[0], Schedule.store_all(made[0]))
    assert run.makespan_s == int(run.makespan_s) > 0
    graph = made[0].graph
    written = {tensor for op in graph.ops for tensor in op.writes}
    read = {tensor for op in graph.ops for tensor in op.reads}
    last = {op.name: op for op in graph.ops}
    assert written - read <= {t for op in last.values() for t in op.writes}


def test_a_backward_has_a_gradient_for_all_that_was_read():
    step = families.Forward({"x": 4})
    a = step.add(["x"], 2, 8)
    b = step.add([a], 3, 6, needs_inputs=False, needs_output=True)
    step.add([a, b], 1, 5)
    graph = step.training()
    ops = {op.name: op for op in graph.ops}
    assert dict(ops["b.t2"].writes) == {"d.t2.t0": 8, "d.t2.t1": 6}
    assert set(ops["b.t1"].reads) == {"d.t2.t1", "t1"}
    assert set(ops["b.t0"].reads) == {"d.t2.t0", "d.t1.t0", "x"}
    assert dict(ops["b.t0"].writes) == {}
