"""Forwards before any backward: what the earlier ones keep stays beside the later ones."""

from __future__ import annotations

import gc
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def made():
    """Layers whose inner tensors take most."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3)]
    return nn.Sequential(*layers), [torch.randn(256, 16) for _ in range(4)]


def budgeted(model, batches, budget, door):
    """The model within a budget."""
    torch._dynamo.reset()
    gc.collect()  # graphs that other tests have left would count
    options = {"budget": budget, "effort": 0.2, "extra_bytes": storage_bytes(batches[1:])}
    if door == "backend":
        return torch.compile(model, backend="schedsim", options=options)
    schedsim.rematerialize(model, batches[0], in_place=True, check="never", **options)
    return model


def contrastive(module, batches):
    """Four forwards, of which one loss is made."""
    one, two, three, four = map(module, batches)
    ((one - two).square().mean() - (three - four).square().mean()).backward()


def probes(module, batches):
    """Forwards that save for a backward which never comes."""
    return [float(held.detach().mean()) for held in [module(x) for x in batches]]


def peak(step, budget, door):
    """The peak of a later step of the loop; the first two are measured for its plan."""
    model, batches = made()
    module = budgeted(model, batches, budget, door)
    for _ in range(3):
        step(module, batches)
        model.zero_grad()
    [reading] = AllocatorMeter().read(lambda: step(module, batches))
    return storage_bytes([*model.parameters(), *batches]) + reading.peak_bytes


def one_forward(module, batches):
    """A step that fits where the others do not."""
    module(batches[0]).square().mean().backward()


@pytest.mark.slow
@pytest.mark.parametrize(("step", "door"), [(contrastive, "in place"), (probes, "backend")])
def test_forwards_that_do_not_fit_together_are_refused_with_a_budget_that_works(step, door):
    budget = 330_000
    assert peak(one_forward, budget, door) <= budget
    with pytest.raises(schedsim.InfeasibleBudgetError, match="or more before a back") as refused:
        peak(step, budget, door)
    named = int(re.search(r"budget=(\d+)", refused.value.hint)[1])
    del refused
    gc.collect()
    assert peak(step, named, door) <= named


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", "backend"])
def test_one_forward_more_than_steps_were_planned_for_is_told_of(door):
    """It runs with least memory, and later steps are planned for it or refused."""
    model, batches = made()
    module = budgeted(model, batches, 330_000, door)
    for _ in range(3):
        one_forward(module, batches)
        model.zero_grad()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outputs = [module(x) for x in batches]
        sum(it.square().mean() for it in outputs).backward()
    lines = [str(it.message) for it in said if it.category is PlainStepWarning]
    assert len(lines) == 1
    assert "is called once more than steps were planned for" in lines[0]
    assert "this step may exceed the budget" in lines[0]
    assert all(map(torch.equal, outputs, [model.forward(x) for x in batches]))
    with pytest.raises(schedsim.InfeasibleBudgetError):
        contrastive(module, batches)


@pytest.mark.slow
def test_a_call_that_is_always_smaller_is_planned_at_its_own_size():
    """As a second crop of images: the step was refused for two of the larger one."""
    torch._dynamo.reset()
    gc.collect()
    model, _ = made()
    large, small = torch.randn(512, 16), torch.randn(64, 16)
    options = {"budget": 10**7, "effort": 0.2, "extra_bytes": storage_bytes(small)}
    step = torch.compile(model, backend="schedsim", options=options, dynamic=True)

    def train():
        (step(large).square().mean() + step(small).square().mean()).backward()
        model.zero_grad()

    for _ in range(4):
        train()
    session = session_of(options)
    [reading] = AllocatorMeter().read(train)
    measured = storage_bytes([*model.parameters(), large, small]) + reading.peak_bytes
    known = session.plans.known
    assert sorted(known.size_of(key) for key in known.numbers) == [(64,), (512,)]
    assert measured <= session.peak_bytes <= 1.1 * measured
