"""Store-all by blocks holds what the plain step holds, and frees it when the plain step does."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.steps import PLAIN, MeasuredSteps  # noqa: E402
from schedsim.validation.targets import LoadedTarget, capture_target  # noqa: E402
from small_models import SMALL  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.simulation.schedule import Schedule  # noqa: E402
from schedsim.simulation.simulator import simulate  # noqa: E402


@pytest.mark.parametrize("name", ["vit", "resnet", "unet"])
def test_store_all_takes_what_the_plain_step_takes(name):
    """Outputs go where their backward starts, gradients behind their last use; all as predicted."""
    kind, options = SMALL[name]
    model, inputs, loss = build_model(kind, **options)
    target = LoadedTarget(name, model, inputs, loss)
    captured = capture_target(target, rounds=0)
    everything = Schedule.store_all(captured.workload)
    steps = MeasuredSteps(target, captured, {"store-all": everything})
    stored = steps.peak("store-all").total_bytes
    assert abs(stored - steps.peak(PLAIN).total_bytes) <= 64
    assert abs(stored - simulate(captured.workload, everything).peak_bytes) <= 64


def test_forwards_behind_their_backward_are_left_out():
    """Nothing needs them, and what they would read is gone."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    x = torch.randn(4, 8)
    captured = capture_chain(model, x, lambda y: y.square().mean(), rounds=0)
    names = ["F0", "F1", "F2", "loss", "B2", "B1", "F2", "B0", "F0"]
    module = captured.module(Schedule.from_names(names))
    module(x).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))
    assert module.run_counts["F2"] == 2
