"""When two contents of a place are the same to a step, and how a change reads."""

from __future__ import annotations

from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.state_change import GONE, StateChange, same, shown  # noqa: E402
from torch import nn  # noqa: E402


def test_equality_is_by_value_of_small_things_and_by_identity_of_others():
    """Kinds count."""
    assert same((1, "a", None), (1, "a", None))
    assert same(float("nan"), float("nan"))
    assert not same(True, 1)
    assert not same([1], [1])
    model = nn.Linear(1, 1)
    assert same(model.eval, model.eval)
    assert not same(model.eval, nn.Linear(1, 1).eval)


def test_values_are_shown_in_a_few_words():
    """Tensors by shape, functions by name, long texts cut."""
    assert shown(torch.zeros(2, 3)) == "Tensor of shape (2, 3)"
    assert shown(nn.Linear.forward) == "function Linear.forward"
    assert shown("x" * 100) == repr("x" * 100)[:37] + "..."
    assert shown(OrderedDict()) == "OrderedDict"
    assert shown((27, 1, "x")) == "(27, 1, 'x')"
    assert shown((27, torch.zeros(2))) == "tuple"


def test_a_change_is_one_clause():
    """New, gone, another of its kind, or one value instead of another."""
    assert str(StateChange("model.p", 0.5, 0.1)) == "model.p is 0.1 instead of 0.5"
    assert str(StateChange("model.p", GONE, 0.1)) == "model.p is new"
    assert str(StateChange("model.p", 0.5, GONE)) == "model.p is gone"
    one, two = torch.zeros(2), torch.ones(2)
    assert str(StateChange("model.t", one, two)) == "model.t is another Tensor of shape (2,)"
    assert StateChange("model.t", one, two).is_replacement
    assert not StateChange("model.p", 0.5, 0.1).is_replacement
