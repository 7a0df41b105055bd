"""The same on a GPU: kernels captured there, peaks in the caching allocator's requested bytes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from chains import random_schedule
from schedsim.validation.capture import capture
from schedsim.validation.costs import measured_costs
from schedsim.validation.dry_cuda import has_values
from step_models import STEPS, make_step

from schedsim import Schedule, simulate

CUDA = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("name", STEPS)
def test_random_schedules_on_a_gpu(name, tmp_path, monkeypatch):
    """Gradients of the store-all schedule, and the peak within 1 % + 1 MiB of the prediction.

    A dry device without values compares bytes alone.
    """
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    model, inputs, loss = make_step(name)
    model, inputs = model.cuda(), tuple(x.cuda() for x in inputs)
    captured = capture(model, inputs, loss)
    assert captured.backend == "cuda"
    captured = captured.with_costs(measured_costs(captured, "cuda", target_s=0.0))
    state = copy.deepcopy(model.state_dict())

    def run(schedule):
        module = captured.module(schedule)
        for _ in range(2):  # the first run warms libraries up
            model.load_state_dict(state)
            model.zero_grad()
            torch.manual_seed(3)
            torch.cuda.synchronize()
            before = torch.cuda.memory_stats()["requested_bytes.all.current"]
            torch.cuda.reset_peak_memory_stats()
            value = module(*inputs)
            value.backward()
            torch.cuda.synchronize()
            peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        gradients = [p.grad.clone() for p in model.parameters()]
        return peak, [value.detach().clone(), *gradients, *(b.clone() for b in model.buffers())]

    _, reference = run(Schedule.store_all(captured.graph))
    for seed in range(5):
        schedule = random_schedule(np.random.default_rng(seed), captured.graph)
        peak, got = run(schedule)
        for mine, its in zip(got, reference, strict=True) if has_values(CUDA) else ():
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
        graph = captured.graph
        predicted = simulate(graph, schedule).peak_bytes - graph.static_bytes
        predicted -= sum(graph.inputs.values())
        assert abs(peak - predicted) <= 0.01 * predicted + 2**20
