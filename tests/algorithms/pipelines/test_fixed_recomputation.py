"""The same recomputation for every stage: closed forms, statuses, and saved plans run again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedsim.algorithms.pipelines.fixed_recomputation import fixed_recomputation, replayed
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline

from schedsim.errors import SchedsimError
from schedsim.pipelines import make_pipeline
from schedsim.pipelines.plan_file import SavedPipelinePlan
from schedsim.plans.scope import THIS_PARTITION
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 5), (4, 4)])
def test_equal_stages_take_the_closed_form(order, stages, micro_batches):
    """(m + p - 1) times forward and backward of a stage; f more for each where it is replayed."""
    pipeline = make_pipeline(uniform(8), stages, micro_batches)
    stage = pipeline.chain.stages[0]
    layers, slots = 8 // stages, micro_batches + stages - 1
    keep = fixed_recomputation(pipeline, order=order)
    whole_s = layers * (stage.forward_s + stage.backward_s)
    assert keep.makespan_s == pytest.approx(slots * whole_s)
    assert keep.status == "optimal"
    assert keep.bound_scope == THIS_PARTITION
    assert keep.lower_bound_s <= keep.makespan_s
    again = fixed_recomputation(pipeline, order=order, recompute="layers")
    assert again.makespan_s >= keep.makespan_s + micro_batches * layers * stage.forward_s * 0.999
    assert again.run.peak_bytes < keep.run.peak_bytes
    assert again.options == {"recompute": "layers"}


def test_a_budget_decides_the_status_alone():
    """The run is there all the same, and its peak is the least budget."""
    pipeline = make_pipeline(uniform(8), 2, 4)
    free = fixed_recomputation(pipeline)
    peak = free.run.peak_bytes
    assert (free.budget_bytes, free.min_feasible_bytes) == (None, peak)
    fits, does_not = (fixed_recomputation(pipeline, budget) for budget in (peak, peak - 1))
    assert (fits.status, does_not.status) == ("optimal", "infeasible")
    assert does_not.run.peak_bytes == peak == does_not.min_feasible_bytes
    slower = fixed_recomputation(pipeline, peak, recompute="stage")
    assert slower.status == "feasible"
    assert slower.makespan_s > fits.makespan_s


def test_an_unknown_name_says_which_there_are():
    """Before anything is simulated."""
    with pytest.raises(SchedsimError, match="'some' is unknown") as caught:
        fixed_recomputation(make_pipeline(uniform(4), 2, 2), recompute="some")
    assert "none, layers, stage" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("order", ["1f1b", "zero-bubble"])
def test_a_saved_plan_runs_again_as_it_was(order):
    """The same peak and time, and the budget that it was made for; fewer owed take longer."""
    pipeline = make_pipeline(uniform(8), 2, 4, split_backward=order == "zero-bubble")
    most = fixed_recomputation(pipeline, order=order).run.peak_bytes
    plan = plan_pipeline(pipeline, int(0.85 * most), order=order)
    saved = SavedPipelinePlan(
        order_name=order,
        num_devices=2,
        num_micro_batches=4,
        cuts=pipeline.cuts,
        most_owed=plan.options.get("most_owed"),
        stage_plans=plan.run.plans,
        budget_bytes=plan.budget_bytes,
        peak_bytes=plan.run.peak_bytes,
        makespan_s=plan.makespan_s,
    )
    again = replayed(pipeline, saved)
    assert (again.makespan_s, again.run.peak_bytes) == (plan.makespan_s, plan.run.peak_bytes)
    assert (again.budget_bytes, again.order_name) == (plan.budget_bytes, order)
    assert again.feasible
    assert again.options == {k: v for k, v in plan.options.items() if k == "most_owed"}
    tight = replayed(pipeline, replace(saved, budget_bytes=saved.peak_bytes - 1))
    assert tight.status == "infeasible"
