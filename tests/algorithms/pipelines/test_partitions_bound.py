"""The bound over all cuts of a pipeline, by the few partitions that single stages allow."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines import partitions_bound as _module
from schedsim.algorithms.pipelines.partition import Partitions
from schedsim.algorithms.pipelines.partitions_bound import partitions_bound
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers
from tiers import slow_where

from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("seed", slow_where(range(4), lambda seed: seed >= 1))
def test_no_plan_of_any_partition_is_faster(seed, monkeypatch):
    """Random plans of all ten partitions, at their own peaks; few partitions looked at, too."""
    rng = np.random.default_rng(700 + seed)
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    given = make_pipeline(
        random_chain(rng, 6), 3, 4, split_backward=order == "zero-bubble", link=Link(9.0, 0.5)
    )
    given = replace(
        given,
        free_outputs=seed % 2 == 0,
        layer_static_bytes=tuple(rng.integers(0, 4, 6).tolist()),
    )
    actions = make_order(order, 3, 4)
    fronts = StageFrontiers(given.chain, 10**6, frees_outputs=given.free_outputs)
    partitions = Partitions(given, actions, fronts, mix=True)
    above = 0
    for inner in itertools.combinations(range(1, 6), 2):
        pipeline = replace(given, cuts=(0, *inner, 6))
        sizes = np.diff(pipeline.cuts).tolist()
        chosen = []
        for size in sizes:
            every = [StagePlan(runs) for runs in plans(0, size)]
            chosen.append([every[i] for i in rng.integers(0, len(every), int(rng.integers(1, 3)))])
        run = run_pipeline(pipeline, actions, chosen)
        known_s = 2 * run.makespan_s
        for count in (64, 2, 0):
            monkeypatch.setattr(_module, "_MOST_PARTITIONS", count)
            bound = partitions_bound(partitions, run.peak_bytes, known_s)
            assert bound <= run.makespan_s * (1 + 1e-9)
            above += bound > partitions.lower_bound_s(run.peak_bytes, known_s) * (1 + 1e-9)
    assert above


def test_the_plan_states_it():
    """Equal layers: the only even partition has a bound that its single stages do not show."""
    plan = plan_pipeline(make_pipeline(uniform(8), 4, 8), 40_000_000, partition="auto")
    assert plan.run is not None
    partitions = Partitions(
        plan.pipeline, make_order("1f1b", 4, 8), StageFrontiers(uniform(8), 40_000_000), mix=True
    )
    assert plan.lower_bound_s > partitions.lower_bound_s(40_000_000, plan.run.makespan_s) * 1.01
    assert plan.lower_bound_s <= plan.run.makespan_s


def test_no_partition_below_what_is_known():
    """Where single stages prove the known time already, it is the bound."""
    pipeline = make_pipeline(uniform(8), 4, 8)
    partitions = Partitions(
        pipeline, make_order("1f1b", 4, 8), StageFrontiers(uniform(8), 10**9), mix=True
    )
    assert partitions_bound(partitions, 10**9, 0.06) == 0.06
