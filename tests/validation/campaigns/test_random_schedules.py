"""Random schedules: legal, with as many repeats as asked, and of forwards alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from chains import random_chain
from schedsim.validation.campaigns.random_schedules import random_schedule
from training_graphs import random_training_graph

from schedsim import simulate


@pytest.mark.parametrize("seed", range(10))
def test_they_are_legal_and_repeat_forwards_alone(seed):
    """First runs in order; loss, backwards and ops that run once stand there once."""
    rng = np.random.default_rng(seed)
    for workload in (random_chain(rng, 6), random_training_graph(rng, 6)):
        schedule = random_schedule(workload, rng, repeats=1.5)
        simulate(workload, schedule)
        graph = workload.graph
        runs = schedule.bind(graph).tolist()
        assert list(dict.fromkeys(runs)) == list(range(graph.num_ops))
        for i, op in enumerate(graph.ops):
            if op.once or op.phase != "forward":
                assert runs.count(i) == 1


def test_repeats_are_as_many_as_asked_on_average():
    """None for zero; the same generator gives the same schedule."""
    chain = random_chain(np.random.default_rng(0), 20)
    counts = [len(random_schedule(chain, np.random.default_rng(s), repeats=2.0)) for s in range(40)]
    num_ops = len(chain.op_names)
    assert 1.8 < (np.mean(counts) - num_ops) / (num_ops - 1) < 2.2
    assert len(random_schedule(chain, np.random.default_rng(1), repeats=0.0)) == num_ops
    one, two = (random_schedule(chain, np.random.default_rng(7)) for _ in range(2))
    assert one == two
