"""A refusal has room for kinds of steps that have run, and were not measured yet."""

from __future__ import annotations

import gc
import re

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.plans.unmeasured_steps import (  # noqa: E402
    record_without_measurements,
)
from schedsim.validation.drop_in.records.step_calls import PartCall, StepCalls  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402


def layers(num_in, num_out, width=48):
    return nn.Sequential(nn.Linear(num_in, width), nn.Tanh(), nn.Linear(width, num_out))


class ActorAndCritic(nn.Module):
    """One model with two forwards, trained by two optimizers in turn."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = layers(8, 4), layers(12, 1)

    def forward(self, state, action=None):
        if action is None:
            return torch.tanh(self.actor(state))
        return self.critic(torch.cat([state, action], -1)), self.critic(
            torch.cat([state, -action], -1)
        )


def train(budget, num_steps=5):
    """Steps of both in turn."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, state, action = ActorAndCritic(), torch.randn(128, 8), torch.randn(128, 4)
    critics = torch.optim.AdamW(model.critic.parameters())
    actors = torch.optim.AdamW(model.actor.parameters())
    schedsim.rematerialize(
        model, state, budget, in_place=True, effort=0.1, check="never", extra_bytes=action.nbytes
    )
    for _ in range(num_steps):
        one, two = model(state, action)
        (one.square().mean() + two.square().mean()).backward()
        critics.step()
        critics.zero_grad()
        one, two = model(state, model(state))
        (-torch.min(one, two).mean()).backward()
        actors.step()
        model.zero_grad()


def named_by(budget):
    """The budget that the refusal of `budget` names; ``None`` where it is not refused."""
    gc.collect()
    try:
        train(budget)
    except InfeasibleBudgetError as error:
        return int(re.search(r"budget=(\d+)", error.hint)[1])
    return None


@pytest.mark.slow
def test_steps_of_two_kinds_are_refused_once_more_at_most():
    """The first graph of all knows of no other; what then is named has room for both kinds."""
    named = named_by(90_000)
    again = named_by(named)
    assert again is None or named_by(again) is None


def test_calls_that_nothing_tells_apart_train_their_own_parameters():
    """Those of a step that no record saw are not one: gradients of all count."""
    calls = StepCalls([PartCall((i, 0), None, (), 0, 8, 0) for i in range(2)])
    assert record_without_measurements(calls).trained == ()
    calls.rows[0].trained = calls.rows[1].trained = 5
    assert record_without_measurements(calls).trained == (5, 5)
