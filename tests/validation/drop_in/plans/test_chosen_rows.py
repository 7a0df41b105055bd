"""Rows that a mask chooses: a later graph of the step is larger than the step began with."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402

import schedsim  # noqa: E402


class Chooses(torch.nn.Module):
    """Statistics of the rows that a mask chooses."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(8))

    def forward(self, x, mask):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        chosen = x[mask]
        return x + chosen.mean(0) + chosen.std(0)


def trained(model, inputs):
    """Losses of steps that choose ever more rows, and the peak of the last."""
    losses, masks = [], [torch.arange(64) < num for num in (20, 20, 24, 24, 24, *(44,) * 5)]

    def step(mask):
        model.zero_grad()
        loss = model(inputs, mask).square().mean()
        loss.backward()
        losses.append(loss.item())

    for mask in masks[:-1]:  # in which whatever comes first is measured
        step(mask)
    [reading] = AllocatorMeter().read(lambda: step(masks[-1]))
    return losses, storage_bytes([*model.parameters(), inputs, masks[-1]]) + reading.peak_bytes


@pytest.mark.slow
def test_more_rows_that_fit_are_no_news():
    """They run by the schedule of least memory, and all calls of the step fit beside it.

    The steps take 45,000 bytes with the masks, beside which losses have room for a few bytes.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, inputs = Chooses(), torch.randn(64, 16)
    model = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        schedsim.rematerialize(
            model, (inputs, torch.arange(64) < 20), 45_300, in_place=True, check="never"
        )
        losses, peak = trained(model, inputs)
    assert losses == trained(plain, inputs)[0]
    assert peak <= session_in(model).budget_bytes
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "line"), [(43_000, "runs other graphs than those before"), (44_000, "larger inputs")]
)
def test_more_rows_that_do_not_fit_are_told_of(budget, line):
    """What chooses them grows with them, where the outputs of the graph in front do not."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = Chooses(), torch.randn(64, 16)
    schedsim.rematerialize(
        model, (inputs, torch.arange(64) < 20), budget, in_place=True, check="never"
    )
    with pytest.warns(PlainStepWarning, match=line):
        trained(model, inputs)
    torch._dynamo.reset()
