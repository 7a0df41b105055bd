"""What is there before a step counts."""

from __future__ import annotations

import copy
import gc
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def _trained(model, x):
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


@pytest.mark.slow
def test_what_another_model_keeps_is_counted_in_a_step_between_its_halves():
    """The steps of a critic within that of what it judges, each with a budget."""
    torch.manual_seed(0)
    maker, critic = (
        nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
        )
        for _ in range(2)
    )
    x, budget = torch.randn(256, 16), 600_000
    for model in (critic, maker):
        schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)

    def step():
        made = maker(x)
        critic(made.detach()).square().mean().backward()
        critic(made).mean().backward()
        for model in (critic, maker):
            model.zero_grad()

    for _ in range(6):
        step()
    [reading] = AllocatorMeter().read(step)
    resident = storage_bytes([x, *maker.parameters(), *critic.parameters()])
    assert 0.85 * budget < resident + reading.peak_bytes <= budget


@pytest.mark.slow
def test_what_another_model_has_left_in_a_cycle_does_not_count():
    """As after an error that was caught: the step that it was raised in is gone."""
    x = torch.randn(64, 16)
    model, other = (nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
    for one in (model, other):
        schedsim.rematerialize(one, x, "200%", in_place=True, effort=0.1, check="never")
    gc.collect()
    gc.disable()
    try:
        cycle = [other(x)]
        cycle.append(cycle)
        del cycle
        model(x).sum().backward()
    finally:
        gc.enable()
    assert session_in(model)._resident.others_bytes == 0


@pytest.mark.slow
def test_a_graph_that_is_held_across_steps_is_resident():
    """As of a look at the outputs, which stay in a global variable: steps end all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3))
    )
    plain, x = copy.deepcopy(model), torch.randn(128, 16)
    [reading] = AllocatorMeter().read(lambda: _trained(plain, x))
    resident = storage_bytes([*model.parameters(), x])
    budget = resident + int(1.8 * reading.peak_bytes)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2, check="never")
    for _ in range(2):
        _trained(model, x)
        model.zero_grad()
    held = []
    [look] = AllocatorMeter().read(lambda: held.append(model(x)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(20):
            _trained(model, x)
            model.zero_grad()
    session = session_in(model)
    assert [str(one.message) for one in said if "is held through many steps" in str(one.message)]
    assert len(session._step.calls.rows) == 1
    [reading] = AllocatorMeter().read(lambda: _trained(model, x))
    kept = sum(call.kept_bytes for call in session._resident.member.left)
    assert 0 < kept <= look.peak_bytes
    assert resident + kept + reading.peak_bytes <= session.peak_bytes <= budget
    held[0].square().mean().backward()
    assert session._resident.left_bytes() == 0


class LossInside(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square().mean()


@pytest.mark.slow
def test_losses_that_a_loop_collects_have_room():
    """A few bytes more in each step: counted, and not planned for each time."""
    torch.manual_seed(0)
    model, x = LossInside(nn.Linear(8, 8), nn.Tanh()), torch.randn(256, 8)
    schedsim.rematerialize(model, x, 10**9, in_place=True, effort=0.1, check="never")
    known, losses, seen = session_in(model).plans.known, [], []
    for _ in range(70):
        loss = model(x)
        seen.append(known.resident.now.resident_bytes)
        loss.backward()
        losses.append(loss.detach())
        model.zero_grad()
    state = storage_bytes([*model.parameters()])
    assert all(bytes_ >= state + 4 * k for k, bytes_ in enumerate(seen))
    assert len(set(seen)) == 3  # without a loss, and with room for 64 and for 256
