"""What each stage of a pipeline recomputes, for frameworks that take it."""

from __future__ import annotations

import ast

import pytest
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline

from schedsim.errors import UnsupportedError
from schedsim.export.pipeline_stages import export_stages
from schedsim.pipelines import keep_all, make_order, make_pipeline, run_pipeline
from schedsim.workloads import WorkloadOptions, build_workload

CHAIN = build_workload(WorkloadOptions(preset="gpt2", batch=4)).workload


@pytest.fixture(scope="module")
def planned():
    """1F1B over four stages, in a budget in which stages must recompute."""
    pipeline = make_pipeline(CHAIN, 4, 8)
    plans = [keep_all(len(pipeline.stage_layers(v))) for v in range(pipeline.num_stages)]
    whole = run_pipeline(pipeline, make_order("1f1b", 4, 8), plans)
    plan = plan_pipeline(pipeline, int(0.7 * whole.peak_bytes), order="1f1b")
    assert plan.run is not None
    return plan


def value_of(text, name):
    """The literal that is assigned to `name` in the code `text`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(name)


def test_torchtitan_gets_the_layers_of_each_stage(planned):
    """By their numbers in the model; within the budget, by simulation."""
    found = export_stages(planned.run, planned.budget_bytes, "torchtitan")
    assert found.fits
    assert found.regret >= -1e-9
    chosen, pipeline = value_of(found.text, "CHECKPOINTED"), planned.run.pipeline
    assert value_of(found.text, "NUM_LAYERS") == 12
    places = [pipeline.stage_layers(v)[i] - 1 for v, own in enumerate(found.layers) for i in own]
    assert chosen == sorted(places)
    for own, device in zip(found.layers, found.run.devices, strict=True):
        assert bool(own) == (device.recompute_s > 0)


def test_megatron_gets_one_number_for_all_stages(planned):
    """The least first layers of every stage with which all devices fit."""
    found = export_stages(planned.run, planned.budget_bytes, "megatron")
    assert found.fits
    count = int(found.text.split()[-1])
    assert max(map(len, found.layers)) == count > 0
    titan = export_stages(planned.run, planned.budget_bytes, "torchtitan")
    assert titan.run.makespan_s <= found.run.makespan_s * (1 + 1e-9)


def test_a_budget_that_nothing_meets_gives_the_leanest(planned):
    """And says that it does not fit; other targets are refused."""
    found = export_stages(planned.run, 1, "megatron")
    assert not found.fits
    assert found.run.peak_bytes <= planned.run.peak_bytes
    with pytest.raises(UnsupportedError, match="no plan for each stage"):
        export_stages(planned.run, planned.budget_bytes, "maxtext")
