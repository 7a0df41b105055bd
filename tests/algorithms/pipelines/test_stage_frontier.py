"""Points of a stage against every persistent way to recompute it, listed one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from listed_plans import plans
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers
from tiers import slow_where

from schedsim import Chain
from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline


@pytest.mark.parametrize("seed", slow_where(range(12), lambda seed: seed >= 4))
def test_every_point_is_as_it_says(seed):
    """A point's plan takes its time, and holds and needs no more than it says.

    Measured on one device under gpipe, with the whole chain as the stage: with M micro-batches the
    device takes M - 1 times what is held and what the running one needs.
    """
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 5))
    chain = replace(random_chain(rng, num), static_bytes=0)
    fronts = StageFrontiers(chain, 10**6)
    front = fronts.front(0, num)
    assert front.complete
    for p in range(front.num_points):
        plan, held, need = fronts.plan(0, num, p), front.held_bytes[p], front.need_bytes[p]
        for num_micro in (1, 2, 4):
            pipeline = make_pipeline(chain, 1, num_micro)
            run = run_pipeline(pipeline, make_order("gpipe", 1, num_micro), [plan])
            assert run.makespan_s == pytest.approx(num_micro * front.time_s[p])
            most = num_micro * chain.input_bytes + (num_micro - 1) * held + need
            assert run.peak_bytes <= most
        early = sum(chain.stages[i].forward_s for i in plan.early_replays)
        forward_s = sum(stage.forward_s for stage in chain.stages)
        assert front.late_s[p] == pytest.approx(front.time_s[p] - early - forward_s)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("num_micro", [1, 3])
def test_the_best_of_the_front_is_the_best_of_all(seed, num_micro):
    """Least time in a budget under gpipe on one device: over points, and over all ways listed."""
    rng = np.random.default_rng(100 + seed)
    num = int(rng.integers(2, 5))
    chain = random_chain(rng, num)
    pipeline = make_pipeline(chain, 1, num_micro)
    order = make_order("gpipe", 1, num_micro)
    fronts = StageFrontiers(chain, 10**6)
    front = fronts.front(0, num)

    def sizes(every):
        found = []
        for plan in every:
            run = run_pipeline(pipeline, order, [plan])
            found.append((run.peak_bytes, run.makespan_s))
        return found

    listed = sizes([StagePlan(runs) for runs in plans(0, num)])
    pointed = sizes([fronts.plan(0, num, p) for p in range(front.num_points)])
    for budget in sorted({peak for peak, _ in listed}):
        best = min(time_s for peak, time_s in listed if peak <= budget)
        within = [time_s for peak, time_s in pointed if peak <= budget]
        assert within
        assert min(within) == pytest.approx(best)


def test_equal_runs_of_layers_share_a_front():
    """With 40 equal layers only the lengths count, except for runs at the ends."""
    chain = Chain.from_arrays(
        "equal",
        1,
        forward_s=[1] * 40,
        backward_s=[2] * 40,
        output_bytes=[1] * 40,
        saved_bytes=[4] * 40,
    )
    fronts = StageFrontiers(chain, 10**6)
    assert fronts.front(5, 9) is fronts.front(20, 24)
    assert fronts.front(0, 4) is not fronts.front(20, 24)


def test_thinned_fronts_say_so():
    """Where points are left out, the front is not complete, and the ends stay."""
    rng = np.random.default_rng(3)
    chain = random_chain(rng, 8)
    whole = StageFrontiers(chain, 10**6).front(0, 8)
    thin = StageFrontiers(chain, 10**6, max_points=6).front(0, 8)
    assert whole.complete
    assert not thin.complete
    assert thin.num_points <= 6
    assert thin.time_s.min() == whole.time_s.min()


@pytest.mark.parametrize("seed", range(6))
def test_the_fixed_plans_are_as_they_say(seed):
    """Their times and sizes, as the engine has them on one device under gpipe."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 5))
    chain = replace(random_chain(rng, num), static_bytes=0)
    fronts = StageFrontiers(chain, 10**6)
    usual = fronts.usual(0, num)
    assert len(usual) == 3
    for front, plan in usual:
        for num_micro in (1, 3):
            pipeline = make_pipeline(chain, 1, num_micro)
            run = run_pipeline(pipeline, make_order("gpipe", 1, num_micro), [plan])
            assert run.makespan_s == pytest.approx(num_micro * front.time_s[0])
            most = num_micro * chain.input_bytes + (num_micro - 1) * front.held_bytes[0]
            assert run.peak_bytes <= most + front.need_bytes[0]
    front, plans = fronts.with_usual(0, num)
    assert front.num_points == fronts.front(0, num).num_points + len(plans)


@pytest.mark.parametrize("cap", range(0, 60, 6))
def test_fixed_plans_that_do_not_fit_are_left_out(cap):
    """Where the cap leaves a replay no room, or only one that repeats more."""
    chain = replace(random_chain(np.random.default_rng(4), 4), static_bytes=0)
    fronts = StageFrontiers(chain, cap)
    once_s = sum(2 * stage.forward_s + stage.backward_s for stage in chain.stages)
    front, plans = fronts.with_usual(0, 4)
    added = slice(front.num_points - len(plans), None)
    assert (front.time_s[added] <= once_s * (1 + 1e-9)).all()
    assert (front.need_bytes <= cap).all()
