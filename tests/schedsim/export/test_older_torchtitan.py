"""torchtitan before 0.3: a table of its configuration file."""

from __future__ import annotations

import numpy as np

import schedsim
from schedsim import simulate
from schedsim.workloads import WorkloadOptions, build_workload

GPT2 = build_workload(WorkloadOptions(preset="gpt2", batch=8)).workload


def planned(workload, share: float):
    """The plan at a share of the way from the least memory to that of store-all."""
    peak = simulate(workload, schedsim.Schedule.store_all(workload)).peak_bytes
    little = min(point.budget_bytes for point in schedsim.pareto(workload).points)
    return schedsim.plan(workload, int(little + share * (peak - little)))


def test_every_nth_layer_counts_from_the_nth():
    """torchtitan's selective mode checkpoints layers 2, 4, ... of 1, 2, 3, 4 for 2."""
    from schedsim.export.older_torchtitan import choose

    found = {}
    for share in np.linspace(0.1, 1.0, 15):
        choice, _ = choose(GPT2, planned(GPT2, float(share)))
        found[choice.data.get("every")] = choice.data["segments"]
    every = max(n for n in found if n is not None)
    assert [start for start, _ in found[every]] == list(range(every, 13, every))
