"""Lower bounds on the step time of a pipeline: fill, one device's work, drain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines.partition import Partitions
from schedsim.algorithms.pipelines.pipeline_bounds import (
    LeastWork,
    dropped_s,
    first_turn_s,
    memory_bound,
    round_trip_s,
    work_bound,
)
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers

from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_for_every_plan(seed):
    """No plan, mixed ones among them, is faster than the bound at its own peak.

    Nor than the bound over all partitions, and where most choices of a stage were left out.
    """
    rng = np.random.default_rng(200 + seed)
    chain = random_chain(rng, 6)
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    pipeline = make_pipeline(
        chain, 3, 5, split_backward=order == "zero-bubble", link=Link(9.0, 0.5)
    )
    actions = make_order(order, 3, 5)
    fronts, thinned = StageFrontiers(chain, 10**6), StageFrontiers(chain, 10**6, max_points=2)
    partitions = Partitions(pipeline, actions, thinned, mix=True)
    every = [StagePlan(runs) for runs in plans(0, 2)]
    for _ in range(40):
        chosen = [
            [every[i] for i in rng.integers(0, len(every), int(rng.integers(1, 4)))]
            for _ in range(3)
        ]
        run = run_pipeline(pipeline, actions, chosen)
        assert work_bound(pipeline) <= run.makespan_s * (1 + 1e-9)
        for some in (fronts, thinned):
            bound = memory_bound(some, pipeline, actions, run.peak_bytes)
            assert bound <= run.makespan_s * (1 + 1e-9)
        bound = partitions.lower_bound_s(run.peak_bytes, 1e30)
        assert bound <= run.makespan_s * (1 + 1e-9)


@pytest.mark.parametrize("slow", range(4))
def test_the_slowest_stage_waits_for_its_first_gradient(slow):
    """One stage of four runs its forward again, 1 ms of 4: no order of its work hides the wait.

    A stage early in the pipeline waits longest; the last stage waits for nothing.
    """
    pipeline, order = make_pipeline(uniform(4), 4, 8), make_order("1f1b", 4, 8)
    keep, again = StagePlan(("B0",)), StagePlan(("F0", "B0"))
    run = run_pipeline(pipeline, order, [again if v == slow else keep for v in range(4)])
    work = LeastWork(0.032, 0.031)
    times = [pipeline.stage_work_s(v) for v in range(4)]
    turn = first_turn_s(pipeline, order, slow, work, times)
    trip = round_trip_s(pipeline, slow) + work.all_s
    assert max(turn, trip) == pytest.approx(run.makespan_s, abs=1e-12)
    assert (turn > trip + 1e-6) == (slow < 3)
    assert (
        first_turn_s(make_pipeline(uniform(4), 4, 8, split_backward=True), order, 0, work, times)
        == 0
    )


def test_the_cheapest_bundles_run_again_first():
    """By seconds a byte, the last one in part; a freed output counts for none of its layer."""
    one, two, three = uniform(3).stages
    layers = (
        replace(one, forward_s=1.0, saved_bytes=10),
        replace(two, forward_s=4.0, saved_bytes=20),
        replace(three, forward_s=3.0, saved_bytes=10, output_bytes=5),
    )
    told = [dropped_s(layers, held, frees_output=False) for held in (40, 30, 20, 0, -1)]
    assert told == [0.0, 1.0, 3.0, 8.0, float("inf")]
    # The last bundle is 5 bytes without its output: of 35, ten go for 1 s, ten for 2 s.
    assert dropped_s(layers, 15, frees_output=True) == 3.0
