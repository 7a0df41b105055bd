"""What the model gives to its loss is not held longer than the plain step holds it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.campaigns.random_schedules import random_schedule  # noqa: E402
from schedsim.validation.steps import PLAIN, MeasuredSteps  # noqa: E402
from schedsim.validation.targets import LoadedTarget, capture_target, load_target  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.simulation.schedule import Schedule  # noqa: E402
from schedsim.simulation.simulator import simulate  # noqa: E402

GPT2 = "model:gpt2,layers=1,hidden=16,heads=1,seq=32,vocab=4000,batch=2"


def steps_of(target):
    captured = capture_target(target, rounds=0)
    everything = Schedule.store_all(captured.workload)
    return captured, MeasuredSteps(target, captured, {"store-all": everything})


def test_store_all_takes_no_more_logits_than_the_plain_step():
    """Logits are 32 * 2 * 4000 * 4 B = 1,024,000 B; three of them live at once in either step."""
    captured, steps = steps_of(load_target(GPT2, "cpu"))
    plain, stored = steps.peak(PLAIN).total_bytes, steps.peak("store-all").total_bytes
    assert abs(stored - plain) < 0.1 * 1_024_000
    predicted = simulate(captured.workload, Schedule.store_all(captured.workload)).peak_bytes
    assert abs(stored - predicted) <= 64


class Ends(nn.Module):
    """Ends in a layer that keeps its own output, or one that does not."""

    def __init__(self, last):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 512), nn.Linear(512, 512), last)

    def blocks(self):
        return list(self.layers)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Linear(512, 512), nn.Softmax(-1)])
@pytest.mark.parametrize(
    "loss",
    [
        lambda y: y.square().mean(),  # keeps the output
        lambda y: (2 * y).sum(),  # keeps nothing
        lambda y: y.log_softmax(-1)[:, 0].sum(),  # keeps something of its size
    ],
)
def test_what_others_keep_is_still_counted(last, loss):
    """Predicted to the byte, whoever holds the last output, for store-all and random schedules."""
    model = Ends(last).layers
    target = LoadedTarget("ends", model, (torch.randn(64, 8),), loss)
    captured, steps = steps_of(target)
    rng = np.random.default_rng(0)
    schedules = [random_schedule(captured.workload, rng) for _ in range(3)]
    for number, schedule in enumerate(schedules):
        steps.modules[str(number)] = captured.module(schedule)
    reference = steps.results(PLAIN)
    everything = Schedule.store_all(captured.workload)
    for name, schedule in [("store-all", everything), *zip("012", schedules, strict=True)]:
        peak = steps.peak(name).total_bytes
        assert abs(peak - simulate(captured.workload, schedule).peak_bytes) <= 64
        assert all(map(torch.equal, steps.results(name), reference))
