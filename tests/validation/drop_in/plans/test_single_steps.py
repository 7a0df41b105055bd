"""The plan of a step of one part."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from lengths import WIDTH, Net, batch, peak, planned, same, step  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts.part_line import PartCost  # noqa: E402
from schedsim.validation.drop_in.plans.known_steps import KnownSteps  # noqa: E402
from schedsim.validation.drop_in.plans.schedule_search import ScheduleSearch  # noqa: E402
from schedsim.validation.drop_in.plans.single_steps import number_for_all  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
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


@dataclass
class FoundPlan:
    """What a refusal reads of a plan."""

    budget_bytes: int
    least: Any = None
    min_feasible_bytes: int | None = None
    bound_scope: str = ""


def of_kinds(budget_bytes, peaks):
    """What is known of steps of two kinds that begin with one part, by schedules 0, 1 and 2."""
    part = SimpleNamespace(
        cost=lambda number, _: PartCost(number, 0, 0, 0, 3.0 - number), schedules=[None] * 3
    )
    return SimpleNamespace(
        budget_bytes=budget_bytes,
        plan=FoundPlan(budget_bytes),
        made_bytes=0,
        others_bytes=0,
        others_hold_bytes=0,
        growing_bytes=0,
        coming_bytes=0,
        single=lambda _: (part, ()),
        single_peak=lambda record, _part, _binding, cost: peaks[record][cost.number],
        by_itself=lambda _: 0,
        late_gradient_bytes=lambda: 0,
        unmeasured_bytes=lambda: 0,
        optimizer_bytes=lambda: 0,
        uncounted_bytes=lambda: 0,
        options=SimpleNamespace(largest=None),
        is_share=False,
    )


def test_one_schedule_is_within_the_budget_in_steps_of_all_kinds():
    """The quickest of those planned; where none is, of all that are known."""
    known = of_kinds(10, {"beside": [5, 9, 12], "alone": [4, 5, 6]})
    assert number_for_all(known, ["beside", "alone"], [0, 2]) == (0, [5, 4])
    assert number_for_all(known, ["beside", "alone"], [0, 1]) == (1, [9, 5])
    assert number_for_all(known, ["beside", "alone"], [2, 2]) == (1, [9, 5])
    with pytest.raises(schedsim.InfeasibleBudgetError, match="2 kinds that begin with one part"):
        number_for_all(of_kinds(4, {"beside": [5] * 3, "alone": [4] * 3}), ["beside", "alone"], [0])


def heads():
    """Two models with one trunk, and their optimizer."""
    layers = [layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    trunk = nn.Sequential(*layers)
    models = nn.Sequential(trunk, nn.Linear(64, 8)), nn.Sequential(trunk, nn.Linear(64, 3))
    return models, torch.optim.SGD(models[0].parameters(), lr=1e-3)


def train(calls, optimizer, x, kinds):
    """Steps with one backward for both, or with one for each."""
    for together in kinds:
        optimizer.zero_grad()
        losses = []
        for call in calls:
            losses.append(call(x).square().mean())
            if not together:
                losses.pop().backward()
        if together:
            sum(losses).backward()
        optimizer.step()


@pytest.mark.slow
def test_a_part_that_runs_beside_another_model_and_alone_is_planned_for_both():
    """The plan for the step alone replaced the other one: that step took 1.29 of the budget."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    models, optimizer = heads()
    x = torch.randn(512, 64)
    resident = storage_bytes([*models[0].parameters(), *models[1].parameters(), x])
    train(models, optimizer, x, [True])
    [reading] = AllocatorMeter().read(lambda: train(models, optimizer, x, [True]))
    budget = int(0.8 * (resident + reading.peak_bytes))
    calls = []
    for model in models:
        options = {"budget": budget, "effort": 0.1}
        calls.append(torch.compile(model, backend="schedsim", options=options))
    train(calls, optimizer, x, [True, True, False, True, True, False])
    [reading] = AllocatorMeter().read(lambda: train(calls, optimizer, x, [True]))
    assert resident + reading.peak_bytes <= budget
