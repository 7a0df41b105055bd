"""The bound on a pipeline's step by all of its actions in one linear program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines import turns_bound as _turns
from schedsim.algorithms.pipelines.pipeline_bounds import dropped_s, memory_bound
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers
from schedsim.algorithms.pipelines.turns_bound import dropped_lines, turns_bound

from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_faster_than_the_bound_at_its_own_peak(seed):
    """Mixed plans, all orders, late recomputation, freed outputs, and most choices left out."""
    rng = np.random.default_rng(400 + seed)
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    pipeline = make_pipeline(
        random_chain(rng, 6), 3, 5, split_backward=order == "zero-bubble", link=Link(9.0, 0.5)
    )
    pipeline = replace(pipeline, waits_for_gradient=seed < 2, free_outputs=seed % 2 == 0)
    actions = make_order(order, 3, 5)
    few = {"frees_outputs": pipeline.free_outputs}
    fronts = StageFrontiers(pipeline.chain, 10**6, **few)
    thinned = StageFrontiers(pipeline.chain, 10**6, max_points=2, **few)
    every = [StagePlan(runs) for runs in plans(0, 2)]
    for _ in range(8):
        chosen = [
            [every[i] for i in rng.integers(0, len(every), int(rng.integers(1, 4)))]
            for _ in range(3)
        ]
        run = run_pipeline(pipeline, actions, chosen)
        for some in (fronts, thinned):
            bound = turns_bound(some, pipeline, actions, run.peak_bytes)
            assert bound <= run.makespan_s * (1 + 1e-9)


def test_stages_that_recompute_in_turn_are_seen_together():
    """Four equal stages at a tight budget: single stages prove 66 ms of a step of 74 ms."""
    pipeline = make_pipeline(uniform(8), 4, 8)
    plan = plan_pipeline(pipeline, 40_000_000)
    fronts = StageFrontiers(pipeline.chain, 40_000_000)
    single = memory_bound(fronts, pipeline, make_order("1f1b", 4, 8), 40_000_000)
    assert plan.lower_bound_s > single * 1.02
    assert plan.lower_bound_s <= plan.makespan_s


def test_where_it_says_nothing(monkeypatch):
    """Several stages a device, and many actions; too little memory for any plan is a proof."""
    several = make_pipeline(uniform(8), 2, 4, num_chunks=2)
    order = make_order("interleaved", 2, 4, 2)
    assert turns_bound(StageFrontiers(several.chain, 10**9), several, order, 10**9) == 0.0
    one = make_pipeline(uniform(8), 4, 8)
    order = make_order("1f1b", 4, 8)
    for budget, cap in ((10**7, 10**7), (4 * 10**6, 10**9)):  # no plan at all; not so many held
        assert turns_bound(StageFrontiers(one.chain, cap), one, order, budget) == float("inf")
    monkeypatch.setattr(_turns, "MOST_OF_SIMPLEX", 100)
    assert turns_bound(StageFrontiers(one.chain, 10**7), one, order, 10**7) == 0.0


def test_the_lines_are_those_of_what_is_dropped():
    """At every share of the bundles the highest line is `dropped_s`."""
    layers = tuple(
        replace(layer, forward_s=time_s, saved_bytes=size)
        for layer, time_s, size in zip(
            uniform(3).stages, (1.0, 4.0, 3.0), (10, 20, 10), strict=True
        )
    )
    lines = dropped_lines(layers, frees_output=False)
    for held in range(0, 41, 5):
        told = max(0.0, *(base - price * held for base, price in lines))
        assert told == pytest.approx(dropped_s(layers, held, frees_output=False))
