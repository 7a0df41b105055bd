"""Bytes that plans count beside the parts of a step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lengths import WIDTH, batch  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class PartlyTraced(nn.Module):
    """Most of its parameters are in no part of the step."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, WIDTH))

    def forward(self, x):
        x = torch.tanh(self.inner(torch.tanh(self.first(x))))
        return torch.tanh(self.last(unseen(self.hidden, x)))


@torch._dynamo.disable
def unseen(module, x):
    return module(x)


def measured(model, x):
    """The allocator's reading of a step that is planned, and the session of the model."""

    def run():
        model(x).square().sum().backward()
        model.zero_grad()

    for _ in range(3):
        run()
    [reading] = AllocatorMeter().read(run)
    return reading, session_in(model)


@pytest.mark.slow
def test_code_outside_of_parts_is_counted():
    """Its parameters with the optimizer's state, what it keeps, and what its backward takes."""
    model, x = PartlyTraced(), batch(16)
    schedsim.rematerialize(model, x, "10MB", in_place=True, effort=0.1, optimizer="adamw")
    reading, session = measured(model, x)
    assert len(session.parts) == 2
    resident = 3 * storage_bytes([*model.parameters()])
    assert session.plans.known.resident.now.resident_bytes >= resident
    assert resident + storage_bytes(x) + reading.peak_bytes <= session.peak_bytes


class LateTraced(nn.Module):
    """Its first layers are in no part of the step."""

    def __init__(self, broken):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 512), nn.Tanh(), nn.Linear(512, WIDTH))
        self.first, self.last, self.broken = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), broken

    def forward(self, x):
        x = torch.tanh(self.first(unseen(self.hidden, x)))
        if self.broken:
            torch._dynamo.graph_break()
        return torch.tanh(self.last(x))


@pytest.mark.slow
@pytest.mark.parametrize("broken", [pytest.param(False, marks=pytest.mark.slow), True])
def test_code_before_the_first_part_is_counted(broken):
    """What it keeps for its backward is there in every part, whether there is one or more."""
    torch._dynamo.reset()
    model, x = LateTraced(broken), batch(16)
    schedsim.rematerialize(model, x, "10MB", in_place=True, effort=0.1)
    reading, session = measured(model, x)
    assert len(session.parts) == 1 + broken
    taken = storage_bytes([x, *model.parameters()]) + reading.peak_bytes
    assert taken <= session.peak_bytes <= 1.3 * taken


def test_the_first_step_of_a_run_that_goes_on_counts_the_states_that_it_has_loaded():
    """No optimizer has stepped yet."""
    model, x = nn.Linear(WIDTH, WIDTH), batch(16)
    earlier = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    earlier.step()
    earlier.zero_grad()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(earlier.state_dict())
    del earlier
    schedsim.rematerialize(model, x, "10MB", in_place=True, check="never")
    model(x).square().sum().backward()
    assert session_in(model).plans.known.resident.now.resident_bytes >= 3 * storage_bytes(
        [*model.parameters()]
    )


def test_a_model_whose_first_plans_come_with_the_end_of_a_round_has_its_budget():
    """Its steps ran by schedules of little memory before, beside other models."""
    torch._dynamo.reset()
    model, x = PartlyTraced(), batch(64)
    schedsim.rematerialize(model, x, 10_000_000, in_place=True, effort=0.1)
    _, session = measured(model, x)
    assert len(session.plans.known.records[0].keys) > 1
    session.plans.lift()
    session.plans.known.budget_bytes = None
    assert session.plans.lower() is None
    assert session.plans.known.budget_bytes == 10_000_000
