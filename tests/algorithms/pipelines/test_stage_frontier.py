"""Points of a stage against every persistent way to recompute it, listed one by one."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.pipelines._pareto_points import undominated
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers

from schedsim import Chain
from schedsim.pipelines import StagePlan, make_order, make_pipeline, run_pipeline


@cache
def replays(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All persistent ways to run layers lo..hi-1 forward and backward from the input of lo."""
    if lo == hi:
        return ((),)
    found = [
        (f"F{lo}", *rest, f"B{lo}") for rest in (replays(lo + 1, hi) if lo + 1 < hi else ((),))
    ]
    for j in range(lo + 1, hi):
        forward = tuple(f"F{i}" for i in range(lo, j))
        for right, left in itertools.product(replays(j, hi), replays(lo, j)):
            found.append((*forward, *right, *left))
    return tuple(found)


@cache
def plans(lo: int, hi: int) -> tuple[tuple[str, ...], ...]:
    """All backwards of a stage: layers kept, or segments dropped and run again, left to right."""
    if lo == hi:
        return ((),)
    found = [(*rest, f"B{lo}") for rest in plans(lo + 1, hi)]
    for j in range(lo + 1, hi + 1):
        found += [(*rest, *one) for rest in plans(j, hi) for one in replays(lo, j)]
    return tuple(found)


def measured(chain: Chain, plan: StagePlan) -> tuple[int, int, float]:
    """What one micro-batch holds, needs and takes, simulated by itself as the middle stage.

    The layers stand between two of no size and no time. They begin with a layer that passes their
    input on, so that their first backward makes a gradient of it.
    """
    peaks = []
    for num_micro in (1, 2):
        pipeline = make_pipeline(chain, 1, num_micro)
        run = run_pipeline(pipeline, make_order("gpipe", 1, num_micro), [plan])
        peaks.append(run.peak_bytes)
    return peaks[1] - peaks[0], peaks[0], run.makespan_s / 2


@pytest.mark.parametrize("seed", range(12))
def test_no_persistent_way_beats_the_front(seed):
    """Every way is covered by a point, and every point's plan has its time and its sizes at most.

    Measured on one device under gpipe, with the whole chain as the stage: with M micro-batches the
    device takes M times what is held, and what the running one needs besides.
    """
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 5))
    chain = random_chain(rng, num)
    fronts = StageFrontiers(chain, 10**6)
    front = fronts.front(0, num)
    assert front.complete
    points = list(zip(front.held_bytes, front.need_bytes, front.time_s, strict=True))
    for runs in plans(0, num):
        plan = StagePlan(runs)
        _, need, time_s = measured(chain, plan)
        need -= chain.input_bytes
        # What it takes with many in flight, by the model of the front.
        assert any(
            (q <= need + 0 * h and t <= time_s + 1e-9) or (t <= time_s + 1e-9 and q <= need)
            for h, q, t in points
        ), (runs, need, time_s)
    for p, (held, need, time_s) in enumerate(points):
        plan = fronts.plan(0, num, p)
        more, alone, seconds = measured(chain, plan)
        assert seconds == pytest.approx(time_s)
        assert alone <= need + chain.input_bytes
        assert more <= held + chain.input_bytes


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
    """Of 40 equal layers only the lengths count, but for those at the ends."""
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


@pytest.mark.parametrize("seed", range(20))
def test_undominated(seed):
    """Against the definition, point by point."""
    rng = np.random.default_rng(seed)
    held, need = rng.integers(0, 8, (2, 30))
    keep = undominated(held, need)
    for p in range(30):
        beaten = any(held[q] <= held[p] and need[q] <= need[p] for q in range(p) if keep[q])
        assert keep[p] == (not beaten)


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
