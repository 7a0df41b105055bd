"""Lower bounds on the step time of a pipeline: fill, one device's work, drain."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines.pipeline_bounds import memory_bound, work_bound
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers

from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_for_every_plan(seed):
    """No plan, mixed ones among them, is faster than the bound at its own peak."""
    rng = np.random.default_rng(200 + seed)
    chain = random_chain(rng, 6)
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    pipeline = make_pipeline(
        chain, 3, 5, split_backward=order == "zero-bubble", link=Link(9.0, 0.5)
    )
    actions = make_order(order, 3, 5)
    fronts = StageFrontiers(chain, 10**6)
    every = [StagePlan(runs) for runs in plans(0, 2)]
    for _ in range(40):
        chosen = [
            [every[i] for i in rng.integers(0, len(every), int(rng.integers(1, 4)))]
            for _ in range(3)
        ]
        run = run_pipeline(pipeline, actions, chosen)
        assert work_bound(pipeline) <= run.makespan_s * (1 + 1e-9)
        bound = memory_bound(fronts, pipeline, actions, run.peak_bytes)
        assert bound <= run.makespan_s * (1 + 1e-9)
