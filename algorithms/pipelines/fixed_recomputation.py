"""The same recomputation for every stage, as training frameworks offer it; saved plans replayed."""

from __future__ import annotations

from typing import Any

from schedsim.errors import SchedsimError
from schedsim.pipelines import RECOMPUTE, Pipeline, PipelineRun, make_order, run_pipeline
from schedsim.pipelines.plan_file import SavedPipelinePlan
from schedsim.plans.plan import OPTIMALITY_TOLERANCE, Status, installed_versions, timed
from schedsim.plans.scope import THIS_PARTITION

from .pipeline_bounds import work_bound
from .plan_pipeline import PipelinePlan


@timed()
def fixed_recomputation(
    pipeline: Pipeline,
    budget_bytes: int | None = None,
    *,
    order: str = "1f1b",
    recompute: str = "none",
) -> PipelinePlan:
    """The step in which every stage recomputes the same (`recompute`), simulated.

    Parameters
    ----------
    budget_bytes
        Decides only the status: the plan has a run even where it does not fit.
    order
        Name of the order.
    recompute
        ``"none"``; ``"layers"`` keeps every layer's input; ``"stage"`` keeps only the stage's.

    Examples
    --------
    >>> from schedsim.pipelines import make_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> pipeline = make_pipeline(uniform(8), 4, 1)
    >>> plan = fixed_recomputation(pipeline, order="gpipe", recompute="stage")
    >>> round(plan.makespan_s / plan.pipeline.chain.store_all_s, 4)  # f + b + f / 4 over f + b
    1.0833
    """
    if recompute not in RECOMPUTE:
        raise SchedsimError(
            f"recomputation {recompute!r} is unknown", hint=f"one of {', '.join(RECOMPUTE)}"
        )
    actions = make_order(
        order, pipeline.num_devices, pipeline.num_micro_batches, pipeline.num_chunks
    )
    stages = range(pipeline.num_stages)
    plans = [RECOMPUTE[recompute](len(pipeline.stage_layers(v))) for v in stages]
    run = run_pipeline(pipeline, actions, plans)
    return _as_plan(run, budget_bytes, order, {"recompute": recompute})


@timed()
def replayed(pipeline: Pipeline, saved: SavedPipelinePlan) -> PipelinePlan:
    """A saved plan, simulated again on `pipeline`, which must have the plan's cuts.

    Raises
    ------
    InvalidScheduleError
        The plan's stage plans do not fit the pipeline.
    """
    actions = make_order(
        saved.order_name,
        pipeline.num_devices,
        pipeline.num_micro_batches,
        pipeline.num_chunks,
        most_owed=saved.most_owed,
    )
    run = run_pipeline(pipeline, actions, saved.stage_plans)
    options = {} if saved.most_owed is None else {"most_owed": saved.most_owed}
    return _as_plan(run, saved.budget_bytes, saved.order_name, options)


def _as_plan(
    run: PipelineRun,
    budget_bytes: int | None,
    order: str,
    options: dict[str, Any],
) -> PipelinePlan:
    bound = min(work_bound(run.pipeline), run.makespan_s)
    status: Status = "feasible"
    if budget_bytes is not None and run.peak_bytes > budget_bytes:
        status = "infeasible"
    elif run.makespan_s <= bound * (1 + OPTIMALITY_TOLERANCE):
        status = "optimal"
    return PipelinePlan(
        status=status,
        budget_bytes=budget_bytes,
        pipeline=run.pipeline,
        order_name=order,
        run=run,
        lower_bound_s=bound,
        bound_scope=THIS_PARTITION,
        min_feasible_bytes=run.peak_bytes,
        planning_s=0.0,
        options=options,
        versions=installed_versions(),
    )
