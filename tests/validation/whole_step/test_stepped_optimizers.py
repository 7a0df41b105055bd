"""One table of the optimizers that have a state, by their own steps or as it was loaded."""

from __future__ import annotations

import copy

import torch
from schedsim.validation.whole_step import stepped_optimizers
from schedsim.validation.whole_step.stepped_optimizers import (
    look_for_states,
    see_states,
    state_changes,
)


def changes_of(optimizer):
    return next((num for it, num in state_changes() if it is optimizer), 0)


def stepped():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.sum().backward()
    optimizer = torch.optim.Adam([weight])
    optimizer.step()
    return optimizer


def test_steps_and_loaded_states_are_changes():
    """Of the one that was given the state; a load without a state is none."""
    first = stepped()
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    assert (changes_of(first), changes_of(other)) == (1, 0)
    other.load_state_dict(copy.deepcopy(other.state_dict()))
    assert changes_of(other) == 0
    other.load_state_dict(first.state_dict())
    assert (changes_of(first), changes_of(other)) == (1, 1)
    first.step()
    first.load_state_dict(other.state_dict())
    assert changes_of(first) == 3


def test_states_from_before_are_looked_for_once(monkeypatch):
    """As of a run that goes on, whose optimizer was loaded before schedsim was."""
    kept, fresh = stepped(), torch.optim.Adam([torch.nn.Parameter(torch.ones(3))])
    del stepped_optimizers._changes[kept]
    monkeypatch.setattr(stepped_optimizers, "_has_looked", False)
    look_for_states()
    assert (changes_of(kept), changes_of(fresh)) == (1, 0)
    del stepped_optimizers._changes[kept]
    look_for_states()
    assert changes_of(kept) == 0


def test_a_state_that_grows_outside_of_a_step_is_a_change():
    """As an estimate of the curvature that Sophia makes each few steps."""
    optimizer = stepped()
    see_states()
    see_states()
    assert changes_of(optimizer) == 1
    [weight] = optimizer.state
    optimizer.state[weight]["curvature"] = torch.zeros(3)
    see_states()
    see_states()
    assert changes_of(optimizer) == 2
