"""From an order of stages to one sequence of op runs for all devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import random_chain
from slow_pipeline import pool_peaks

from schedsim import simulate
from schedsim.pipelines import ORDERS, Collectives, StagePlan, make_order, make_pipeline
from schedsim.pipelines.sequence import timed_schedule
from schedsim.plans.links import Link


def random_plan(rng: np.random.Generator, num_layers: int) -> StagePlan:
    """Some layers kept, segments of others run again, from right to left."""
    runs: list[str] = []
    hi = num_layers
    while hi:
        lo = int(rng.integers(0, hi))
        again = [f"F{i}" for i in range(lo, hi)] if rng.random() < 0.6 else []
        runs += again + [f"B{i}" for i in range(hi - 1, lo - 1, -1)]
        hi = lo
    return StagePlan(tuple(runs))


@pytest.mark.parametrize("seed", range(24))
def test_times_and_peaks_equal_a_slow_reference(seed):
    """Random layers, cuts, plans and links: the engine's times and peaks, instance by instance."""
    rng = np.random.default_rng(seed)
    name = list(ORDERS)[seed % 4]
    num_devices, num_chunks = int(rng.integers(1, 4)), 2 if name == "interleaved" else 1
    num_micro = num_devices * int(rng.integers(1, 3))
    num_stages = num_devices * num_chunks
    num_layers = num_stages + int(rng.integers(0, 5))
    # No run but reading a micro-batch in takes no time, so that no instant has two states.
    chain = replace(random_chain(rng, num_layers), loss_s=0.5, loss_workspace_bytes=3)
    inner = 1 + rng.choice(num_layers - 1, num_stages - 1, replace=False) if num_stages > 1 else []
    cuts = (0, *sorted(int(c) for c in inner), num_layers)
    pipeline = make_pipeline(
        chain,
        num_devices,
        num_micro,
        num_chunks=num_chunks,
        cuts=cuts,
        link=Link(4.0, 0.5) if rng.random() < 0.7 else Link(1e9, 0.25),
        split_backward=name == "zero-bubble",
        free_outputs=bool(rng.random() < 0.5),
        waits_for_gradient=bool(rng.random() < 0.5),
        collectives=[Collectives(0.5, 0.75)] * num_layers if rng.random() < 0.3 else (),
    )
    plans = [random_plan(rng, len(pipeline.stage_layers(v))) for v in range(num_stages)]
    order = make_order(name, num_devices, num_micro, num_chunks)
    timed = timed_schedule(pipeline, order, plans)
    simulation = simulate(pipeline.graph, timed.schedule)
    assert simulation.start_s.tolist() == pytest.approx(timed.start_s.tolist())
    peaks = pool_peaks(pipeline.graph, timed.schedule.names, timed.start_s, timed.end_s)
    for k in range(num_devices):
        assert simulation.peak_by_pool[f"device:{k}"] == peaks[f"device:{k}"]
