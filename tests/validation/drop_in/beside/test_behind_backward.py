"""The code behind the last backward of a step."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.behind_backward import BehindBackward  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.records.outside_code import OutsideBytes  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def test_what_counts_elsewhere_is_not_left():
    gradients = [torch.zeros(2)]
    held = SimpleNamespace(
        counted_places=lambda: {1, 2},
        present_gradients=lambda: gradients,
        lasting_bytes=70,
        in_front_bytes=30,
    )
    behind = BehindBackward(held)
    blocks = {1: 10, 2: 20, 3: 40, 4: 80}
    assert behind.left_bytes(blocks, coming={3}) == 80
    behind.begin()
    gradients.append(torch.zeros(4))  # the new one is in the record
    assert behind.peak_bytes(OutsideBytes(3, 0, level=4, top=7), 1000) == 100 + 8 + 1000 + 7


def deep_model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4))
    )


def _half(model, x):
    loss = model(x).square().mean()
    loss.backward()


def sharpness_aware(model, x):
    """Two halves a step, as of Foret et al. (2021): the second beside a copy of the gradients."""
    _half(model, x)
    with torch.no_grad():
        moves = [0.1 * p.grad for p in model.parameters()]
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.add_(move)
    model.zero_grad()
    _half(model, x)
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.sub_(move)
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    return found


def within(share, model, x, step=_half):
    """`model` in place within that share of what a plain `step` takes beside what is resident."""
    plain = copy.deepcopy(model)
    [reading] = AllocatorMeter().read(lambda: step(plain, x))
    budget = storage_bytes([*model.parameters(), x]) + int(share * reading.peak_bytes)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    return budget


@pytest.mark.slow
def test_what_a_loop_keeps_behind_a_backward_is_resident_in_the_next():
    """A copy of all gradients, in steps that take turns."""
    model, x = deep_model(), torch.randn(128, 16)
    resident = storage_bytes([*model.parameters(), x])
    budget = within(0.85, model, x, sharpness_aware)
    for _ in range(4):
        sharpness_aware(model, x)
    [reading] = AllocatorMeter().read(lambda: sharpness_aware(model, x))
    assert resident + reading.peak_bytes <= session_in(model).peak_bytes <= budget


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
def test_code_behind_a_backward_that_takes_more_than_the_budget_is_told(behind):
    """Another forward of the model as it is: in no part."""
    model, x = deep_model(), torch.randn(256, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    within(0.7, model, x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            _half(model, x)
            if behind:
                model.forward(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    lines = [str(one.message) for one in said if one.category is PlainStepWarning]
    assert len(lines) == behind
    assert all("with the code behind its backward" in line for line in lines)


@pytest.mark.slow
def test_what_fits_beside_no_plan_is_told_and_not_counted():
    """As of data that are loaded after the first step: the loop goes on."""
    model, x = deep_model(), torch.randn(128, 16)
    budget = within(0.9, model, x)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(4):
            _half(model, x)
            data = torch.zeros(budget)
            model.zero_grad()
    assert data is not None
    lines = [str(one.message) for one in said if "in front of a step" in str(one.message)]
    assert len(lines) == 1
    assert session_in(model).peak_bytes <= budget
