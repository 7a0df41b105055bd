"""Peaks by the allocator's own record, workspaces of kernels included."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_schedule
from schedsim.validation.capture import capture
from schedsim.validation.costs import measured_costs
from schedsim.validation.measure.allocator import allocations
from step_models import make_step

from schedsim import Schedule, simulate


@pytest.mark.parametrize("name", ["gpt", "resnet", "unet"])
def test_workspaces_make_up_what_the_kernels_allocate(name, tmp_path, monkeypatch):
    """Measured op by op, they give the peak of whole steps; with dropout, up to kept states."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    model, inputs, loss = make_step(name)
    captured = capture(model, inputs, loss)
    captured = captured.with_costs(measured_costs(captured, "cpu", target_s=0.0))
    graph = captured.graph
    resident = graph.static_bytes + sum(graph.inputs.values())
    for seed in (None, 0, 1, 2):
        schedule = Schedule.store_all(graph)
        if seed is not None:
            schedule = random_schedule(np.random.default_rng(seed), graph)
        module = captured.module(schedule)
        module(*inputs).backward()  # kernels made on first use are not part of a step
        model.zero_grad()
        balance = peak = 0
        for change in allocations(lambda module=module: module(*inputs).backward()):
            balance += change
            peak = max(peak, balance)
        predicted = simulate(graph, schedule).peak_bytes
        measured = peak + resident
        # A replay holds the state that it came from besides those that are kept.
        states = module.replay_bytes + 2 * 5056 * (module.replay_bytes > 0)
        assert predicted * 0.995 <= measured <= predicted * 1.005 + states
