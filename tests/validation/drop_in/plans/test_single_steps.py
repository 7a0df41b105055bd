"""The plan of a step of one part."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from lengths import WIDTH, Net, batch, peak, planned, same, step  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.plans.known_steps import KnownSteps  # noqa: E402
from schedsim.validation.drop_in.plans.schedule_search import ScheduleSearch  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


@pytest.mark.slow
def test_smaller_batches_have_schedules_that_recompute_less():
    """As soon as the largest repeats ops, down to a size that keeps everything."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(128))
    planned(model, batch(128), int(0.6 * most), dynamic=True)
    [part] = session_in(model).parts
    step(model, batch(100))
    times = sorted(part.cost(number, (8, 100)).time_s for number in range(len(part.schedules)))
    assert len(times) >= 3
    assert times[0] < times[-1]


@pytest.mark.slow
def test_larger_batches_have_a_schedule_that_fits(monkeypatch):
    """Whatever comes next, as far as a schedule reaches: its step waits for no search."""
    model = Net()
    most, _ = peak(copy.deepcopy(model), batch(128))
    budget = int(0.7 * most)
    plain = planned(model, batch(40), budget, dynamic=True)
    monkeypatch.setattr(KnownSteps, "measure", None)
    for name in ("search", "search_quickly"):
        monkeypatch.setattr(ScheduleSearch, name, None)
    for length in (128, 70, 101):
        step(model, batch(length))
        same(model, plain, batch(length), budget)


class TakesMuch(torch.autograd.Function):
    """Its backward, which comes after that of the part, takes 2 MB."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.zeros(500_000)[0]


@pytest.mark.slow
def test_a_budget_below_what_the_code_outside_takes_is_refused_with_that():
    """No schedule of the part takes less."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(64, WIDTH)
    x.requires_grad_()
    schedsim.rematerialize(model, x, "1MB", in_place=True, effort=0.1, check="never")
    model(TakesMuch.apply(x)).square().sum().backward()
    with pytest.raises(schedsim.InfeasibleBudgetError, match="the code outside of its part") as no:
        model(x)
    assert 2_000_000 <= no.value.min_feasible_bytes <= 2_100_000
