"""Blocks of captured models: layers are found in graphs of ops, gradients as results and all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.algorithms.graphs._graph_blocks import find_blocks  # noqa: E402
from schedsim.algorithms.graphs.hierarchical import hierarchical  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.costs import roofline_costs  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402


@pytest.mark.slow
def test_the_layers_of_a_captured_gpt2_are_one_class_and_a_plan_keeps_its_budget():
    """Tied weights: their gradient crosses every border of the backward part beside d(residual)."""
    built = build_model(
        "gpt2",
        device="meta",
        layers=6,
        hidden=64,
        heads=4,
        vocab=256,
        positions=64,
        seq=64,
        batch=16,
    )  # what is saved is a multiple of the 8.5 MB that cuBLAS is lent for one product
    captured = capture(built.model, built.inputs, built.loss)
    graph = captured.with_costs(roofline_costs(captured, "a100-80gb")).graph
    line = find_blocks(graph)
    kinds = line.kinds.tolist()
    most = max(set(kinds), key=kinds.count)
    assert kinds.count(most) >= 4
    block = line.blocks[line.first_of_kind[most]]
    assert block.inputs.size == 1
    assert block.gradients_in.size == 2
    assert block.result_bytes > 0
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = hierarchical(graph, int(0.7 * peak), effort=0.1)
    assert plan.feasible
    assert simulate(graph, plan.schedule).peak_bytes <= int(0.7 * peak)
