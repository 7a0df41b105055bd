"""Whole steps whose sizes differ: the plain step at each, within the budget, traced once."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.guards.plan_variants import ReplannedWarning  # noqa: E402
from schedsim.validation.measure.meters import AllocatorMeter  # noqa: E402
from schedsim.validation.measure.storage import storage_bytes  # noqa: E402
from schedsim.validation.whole_step import module_plans, plan_maker  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError, SchedsimError  # noqa: E402

LENGTHS = (24, 16, 40, 9, 31, 56, 12, 33, 47, 25, 60, 18)
NUM_STEPS_APART = 2


class Tagger(nn.Module):
    """Layers over positions of sentences, with dropout, that return their loss or logits."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.GELU()) for _ in range(3))
        self.back = nn.ModuleList(nn.Linear(64, 16) for _ in range(3))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 50)

    def forward(self, words):
        x = self.embed(words)
        for there, back in zip(self.layers, self.back, strict=True):
            x = x + self.dropout(back(there(x)))
        return self.head(x)


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(seed=3):
    generator = torch.Generator().manual_seed(seed)
    for length in LENGTHS:
        yield tuple(torch.randint(0, 50, (8, length), generator=generator) for _ in range(2))


def trained(model, step, measured_from):
    """Losses, last parameters, and measured peaks of the steps from a number on."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, peaks = [], []

    def whole(x, target):
        loss = step(x, target)
        loss.backward()
        return loss.detach()

    for i, (x, target) in enumerate(batches()):
        if i < measured_from:
            losses.append(whole(x, target))
        else:
            resident = storage_bytes([list(model.parameters()), x, target])
            [reading] = AllocatorMeter().read(lambda x=x, target=target: whole(x, target))
            peaks.append(resident + reading.peak_bytes)
            losses.append(reading.result)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()], peaks


def made(budget, **options):
    torch.manual_seed(0)
    model = Tagger()
    first = next(batches())
    return model, schedsim.rematerialize(model, first, budget, loss_of, **options)


def plain():
    torch.manual_seed(0)
    model = Tagger()
    return trained(model, lambda x, target: loss_of(model(x), target), 1)


@pytest.mark.slow
def test_further_sizes_are_the_plain_steps_within_the_budget():
    losses, parameters, peaks = plain()
    budget = int(0.8 * max(peaks))
    model, module = made(budget)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, ends, measured = trained(model, module, 7)
    assert torch.equal(found, losses)
    assert all(map(torch.equal, ends, parameters))
    assert max(measured) <= budget
    said = [str(w.message) for w in caught if w.category is ReplannedWarning]
    assert sum("one plan is made for all further sizes" in line for line in said) == 1
    assert len(module.plans) == NUM_STEPS_APART
    assert "outputs, gradients, buffers and generators are the plain step's" in module.report()


@pytest.mark.slow
def test_a_further_size_traces_and_plans_nothing(monkeypatch):
    _, module = made("16MiB")
    steps = list(batches())
    for x, target in steps[:6]:
        module(x, target).backward()

    def refuse(*_arguments, **_keywords):
        raise AssertionError("a step of a further size is planned apart")

    monkeypatch.setattr(plan_maker, "capture_step", refuse)
    monkeypatch.setattr(module_plans, "make_step", refuse)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for x, target in steps[6:]:
        module(x, target).backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    with torch.no_grad():
        assert module(*steps[0]).shape == ()
    module.replan("15MiB")
    monkeypatch.undo()
    module(*steps[0]).backward()
    assert module.budget_bytes == 15 * 2**20


def test_options_that_no_plan_for_many_sizes_honours_keep_plans_apart():
    _, module = made("16MiB", shapes="plan", level="block")
    for x, target in list(batches())[:4]:
        module(x, target).backward()
        module.zero_grad()
    assert len(module.plans) == 4


@pytest.mark.slow
def test_a_largest_size_that_is_named_is_planned_for_at_once(monkeypatch):
    """No step traces, captures or plans anything, whatever its size."""
    losses, parameters, peaks = plain()
    budget = int(0.8 * max(peaks))
    model, module = made(budget, largest={1: max(LENGTHS)}, effort=0.2)
    [many] = module._plans.many_sizes._steps.values()
    known = len(session_in(many).parts[0].schedules)

    def refuse(*_arguments, **_keywords):
        raise AssertionError("a step is planned when it comes")

    monkeypatch.setattr(plan_maker, "capture_step", refuse)
    monkeypatch.setattr(module_plans, "make_step", refuse)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplannedWarning)
        found, ends, measured = trained(model, module, 1)
    assert torch.equal(found, losses)
    assert all(map(torch.equal, ends, parameters))
    assert max(measured) <= budget
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    assert len(session_in(many).parts[0].schedules) == known
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_a_largest_size_that_does_not_fit_is_refused_at_once():
    with pytest.raises(InfeasibleBudgetError, match="does not fit"):
        made("1MiB", largest={1: 4096}, effort=0.2)


def test_a_largest_size_is_refused_where_no_plan_is_for_many_sizes():
    with pytest.raises(SchedsimError, match="largest= is for steps planned op by op") as caught:
        made("16MiB", largest={1: 60}, level="block")
    assert "in_place=True" in caught.value.hint
