"""Recomputation for the stages of one partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from schedsim.algorithms.pipelines._selection import OrderFacts, Selection
from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers

from schedsim.pipelines import make_order, make_pipeline
from schedsim.plans.links import Link
from schedsim.workloads.synthetic import uniform


@pytest.mark.parametrize("seed", range(12))
def test_stage_times_equal_the_engine(seed):
    """Choices timed by whole stages and by single ops come out the same."""
    rng = np.random.default_rng(seed)
    order = ("1f1b", "gpipe", "zero-bubble", "interleaved")[seed % 4]
    chunks = 2 if order == "interleaved" else 1
    chain = replace(random_chain(rng, 9), loss_s=0.5)
    pipeline = make_pipeline(
        chain,
        3,
        6,
        num_chunks=chunks,
        split_backward=order == "zero-bubble",
        link=Link(8.0, 0.25) if seed % 3 else None,
        waits_for_gradient=bool(seed % 2),
    )
    actions = make_order(order, 3, 6, chunks)
    facts = OrderFacts(pipeline, actions)
    selection = Selection(pipeline, facts, StageFrontiers(chain, 10**6), mix=True)
    for _ in range(4):
        choices = []
        for stage in selection.stages:
            num = int(rng.integers(1, 3))
            choices.append(stage.choice(rng.integers(0, stage.front.num_points, num).tolist()))
        run = selection.run(choices)
        assert selection.makespan_s(choices) == pytest.approx(run.makespan_s)


class RoundedUp(Selection):
    """Its model adds up to a little more than the simulator does, as long sums of floats may."""

    def makespan_s(self, choices):
        return super().makespan_s(choices) * (1 + 1e-11)


@pytest.mark.parametrize("budget_bytes", [60_000_000, 100_000_000, 10**9])
def test_rounding_loses_no_run(budget_bytes):
    """Runs count that are faster than the model promised by no more than sums may be rounded."""
    pipeline = make_pipeline(uniform(12), 2, 8)
    facts = OrderFacts(pipeline, make_order("1f1b", 2, 8, 1))
    fronts = StageFrontiers(pipeline.chain, 10**9)
    found, rounded = (
        kind(pipeline, facts, fronts, mix=True).best(budget_bytes)
        for kind in (Selection, RoundedUp)
    )
    assert rounded.makespan_s == pytest.approx(found.makespan_s, rel=1e-9)


def test_enough_memory_recomputes_nothing():
    """A budget in which everything fits gives the step without recomputation."""
    pipeline = make_pipeline(uniform(12), 2, 64)
    selection = Selection(
        pipeline,
        OrderFacts(pipeline, make_order("1f1b", 2, 64, 1)),
        StageFrontiers(pipeline.chain, 10**9),
        mix=True,
    )
    kept = selection.run(selection.choose([10**9] * 2))
    assert kept.peak_bytes < 10**9
    assert selection.best(10**9).makespan_s == pytest.approx(kept.makespan_s)
    assert selection.best(kept.peak_bytes).makespan_s == pytest.approx(kept.makespan_s)
    assert selection.best(kept.peak_bytes - 1).makespan_s > kept.makespan_s
