"""What a stage recomputes: the runs of its backward, for one micro-batch."""

from __future__ import annotations

from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline

from schedsim import Chain
from schedsim.pipelines import StagePlan, make_pipeline


def test_mixing_micro_batches_helps():
    """Where a stage's points are far apart, some micro-batches take the one, some the other."""
    chain = Chain.from_arrays(
        "coarse",
        1,
        forward_s=[4.0] * 4,
        backward_s=[8.0] * 4,
        output_bytes=[1] * 4,
        saved_bytes=[100] * 4,
    )
    pipeline = make_pipeline(chain, 4, 32)
    same = plan_pipeline(pipeline, 350, mix=False)
    mixed = plan_pipeline(pipeline, 350)
    assert mixed.run.makespan_s < same.run.makespan_s
    assert mixed.run.peak_bytes <= 350
    assert any(not isinstance(plan, StagePlan) for plan in mixed.run.plans)
