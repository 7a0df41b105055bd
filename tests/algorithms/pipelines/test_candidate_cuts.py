"""The partitions that every budget chooses from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.pipelines import _selection, candidate_cuts
from schedsim.algorithms.pipelines._selection import OrderFacts
from schedsim.algorithms.pipelines.fixed_recomputation import fixed_recomputation
from schedsim.algorithms.pipelines.plan_pipeline import plan_pipeline
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers

from schedsim.pipelines import make_order, make_pipeline


def candidates(pipeline, mix=True):
    facts = OrderFacts(pipeline, make_order("1f1b", pipeline.num_devices, 4))
    fronts = StageFrontiers(pipeline.chain, 10**6)
    return candidate_cuts.candidate_cuts(pipeline, facts, fronts, fronts, mix=mix)


def test_few_partitions_are_all_candidates():
    """Each once, the pipeline's own first."""
    pipeline = make_pipeline(random_chain(np.random.default_rng(1), 6), 3, 4, cuts=(0, 3, 5, 6))
    found = candidates(pipeline)
    assert found[0] == (0, 3, 5, 6)
    assert len(set(found)) == len(found) == math.comb(5, 2)


def test_of_many_partitions_some_are_candidates(monkeypatch):
    """Partitions of the right form, among them one that needs less than the given one."""
    monkeypatch.setattr(candidate_cuts, "MOST_PARTITIONS", 0)
    pipeline = make_pipeline(random_chain(np.random.default_rng(2), 9), 3, 4, cuts=(0, 5, 6, 9))
    found = candidates(pipeline)
    assert found[0] == (0, 5, 6, 9)
    assert 1 < len(set(found)) == len(found) < math.comb(8, 2)
    assert all(cuts[0] == 0 and cuts[-1] == 9 and min(np.diff(cuts)) > 0 for cuts in found)


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_more_memory_is_never_slower_with_any_partition(seed, monkeypatch):
    """Nor is it refused above a budget that fits; and any partition is no slower than the given.

    213 B took 120.5 where 222 B took 122.
    """
    if seed % 2:
        monkeypatch.setattr(candidate_cuts, "MOST_PARTITIONS", 0)
        monkeypatch.setattr(_selection, "NUM_RUNGS", 4)
        monkeypatch.setattr(_selection, "FEW_STEPS", 4)
        monkeypatch.setattr(_selection, "MOST_CHOICES", 0)
    monkeypatch.setattr(_selection, "MOST_MIXED", 60)
    rng = np.random.default_rng(7005 + seed)
    num_devices = int(rng.integers(2, 4))
    order = ("1f1b", "gpipe", "zero-bubble")[seed % 3]
    pipeline = make_pipeline(
        random_chain(rng, int(rng.integers(num_devices + 2, 8))),
        num_devices,
        2 * num_devices,
        split_backward=order == "zero-bubble",
    )
    least = plan_pipeline(pipeline, 1, order=order, partition="auto").min_feasible_bytes
    most = fixed_recomputation(pipeline, order=order).run.peak_bytes
    budgets = [least - 1, *np.linspace(least, most, 5).astype(int).tolist(), most + 1]
    plans = [plan_pipeline(pipeline, b, order=order, partition="auto") for b in budgets]
    times = [math.inf if plan.run is None else plan.run.makespan_s for plan in plans]
    assert times == sorted(times, reverse=True)
    assert times[1] < math.inf
    for budget, plan in zip(budgets[1:], plans[1:], strict=True):
        assert plan.run is not None
        assert plan.run.peak_bytes <= budget
        assert plan.lower_bound_s <= plan.run.makespan_s
    given = plan_pipeline(pipeline, budgets[3], order=order)
    assert given.run is None or times[3] <= given.run.makespan_s
