"""What each stage of a pipeline recomputes, for frameworks that take it."""

from __future__ import annotations

import ast

import pytest
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline

from schedsim.errors import UnsupportedError
from schedsim.export.pipeline_stages import export_stages
from schedsim.pipelines import StagePlan, keep_all, make_order, make_pipeline, run_pipeline
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


def test_megatron_gets_a_number_for_each_stage(planned):
    """The least first layers with which each device fits; its arguments have the plan's cuts."""
    found = export_stages(planned.run, planned.budget_bytes, "megatron")
    assert found.fits
    counts = value_of(found.text, "RECOMPUTED")
    assert counts == tuple(map(len, found.layers))
    assert len(set(counts)) > 1
    assert found.run.makespan_s < found.alike.makespan_s
    assert found.alike.peak_bytes <= planned.budget_bytes
    pipeline = planned.run.pipeline
    arguments = value_of(found.text, "ARGUMENTS")
    layout = arguments[arguments.index("--pipeline-model-parallel-layout") + 1]
    assert layout.replace("E", "").replace("L", "").count("t") == 12
    sizes = [sum(1 <= i <= 12 for i in pipeline.stage_layers(v)) for v in range(4)]
    assert [row.count("t") for row in layout.split("|")] == sizes
    assert value_of(found.text, "NUM_LAYERS") == tuple(sizes)
    assert arguments[-1] == str(max(counts))
    # One layer fewer on any stage that recomputes does not fit.
    for stage in (v for v, count in enumerate(counts) if count):
        fewer = [keep_all(len(pipeline.stage_layers(v))) for v in range(4)]
        for v, count in enumerate(counts):
            own = [i for i, layer in enumerate(pipeline.stage_layers(v)) if 1 <= layer <= 12]
            again = set(own[: count - (v == stage)])
            runs = []
            for i in reversed(range(len(pipeline.stage_layers(v)))):
                runs += [f"F{i}", f"B{i}"] if i in again else [f"B{i}"]
            fewer[v] = StagePlan(tuple(runs))
        run = run_pipeline(pipeline, planned.run.order, fewer)
        assert run.devices[stage].peak_bytes > planned.budget_bytes


def test_a_device_with_several_stages_has_a_number_for_each():
    """Interleaved: as Megatron counts its virtual stages, and as many rows in the layout."""
    pipeline = make_pipeline(CHAIN, 2, 4, num_chunks=2)
    plans = [keep_all(len(pipeline.stage_layers(v))) for v in range(pipeline.num_stages)]
    run = run_pipeline(pipeline, make_order("interleaved", 2, 4, 2), plans)
    found = export_stages(run, int(0.8 * run.peak_bytes), "megatron")
    arguments = value_of(found.text, "ARGUMENTS")
    assert arguments[1] == "2"
    assert len(value_of(found.text, "RECOMPUTED")) == 4
    assert arguments[3].count("|") == 3
    assert found.fits


def test_a_plan_that_recomputes_nothing_has_the_layout_alone():
    pipeline = make_pipeline(CHAIN, 2, 4)
    plans = [keep_all(len(pipeline.stage_layers(v))) for v in range(2)]
    run = run_pipeline(pipeline, make_order("1f1b", 2, 4), plans)
    found = export_stages(run, run.peak_bytes, "megatron")
    assert value_of(found.text, "RECOMPUTED") == (0, 0)
    assert "--recompute-granularity" not in value_of(found.text, "ARGUMENTS")
    assert found.to_dict()["fits"]


def test_a_budget_that_nothing_meets_gives_the_leanest(planned):
    """And says that it does not fit; other targets are refused."""
    found = export_stages(planned.run, 1, "megatron")
    assert not found.fits
    assert found.run.peak_bytes <= planned.run.peak_bytes
    with pytest.raises(UnsupportedError, match="no plan for each stage"):
        export_stages(planned.run, planned.budget_bytes, "maxtext")
