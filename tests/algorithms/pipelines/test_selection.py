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
