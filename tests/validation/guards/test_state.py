"""The Python that a step can read: what changed of it, in words, and put back."""

from __future__ import annotations

import os
import random
from collections import deque
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.reach import static_reach  # noqa: E402
from schedsim.validation.guards.state import StateSnapshot  # noqa: E402
from torch import nn  # noqa: E402

VARIABLE = "SCHEDSIM_SCALE_OF_A_TEST"


def reads_the_environment():
    return os.environ.get(VARIABLE, "1")


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = [1]


class Model(nn.Module):
    """Something of everything that a step may read."""

    scale = 2.0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.numbers, self.table = [1, 2], {"a": {"b": 1}}
        self.steps, self.names = deque([1]), {"x"}
        self.array, self.slotted = np.arange(3.0), Slotted()
        self.draw, self.nan = random.Random(3), float("nan")
        self.bound = partial(max, [1, 2])
        counter = 0

        def closed(step=[0]):  # noqa: B006
            nonlocal counter
            counter += 1
            return counter, step

        self.closed = closed


CHANGES = {
    "model.nan is new": lambda m: None,
    "model.numbers[1] is 5 instead of 2": lambda m: m.numbers.__setitem__(1, 5),
    "model.numbers is '3 items' instead of '2 items'": lambda m: m.numbers.append(3),
    "model.table['a']['b'] is 2 instead of 1": lambda m: m.table["a"].__setitem__("b", 2),
    "model.table['c'] is new": lambda m: m.table.__setitem__("c", 1),
    "model.table['a'] is gone": lambda m: m.table.pop("a"),
    "model.steps[0] is 2 instead of 1": lambda m: m.steps.__setitem__(0, 2),
    "model.names is '2 items' instead of '1 items'": lambda m: m.names.add("y"),
    "model.array is 'on' instead of 'array as it was'": lambda m: m.array.__setitem__(0, 7),
    "model.slotted.value[0] is 3 instead of 1": lambda m: m.slotted.value.__setitem__(0, 3),
    "model.bound.args[0][0] is 9 instead of 1": lambda m: m.bound.args[0].__setitem__(0, 9),
    "model.closed: counter is 1 instead of 0": lambda m: m.closed(),
    "model.linear.bias is another Parameter of shape (2,)": lambda m: setattr(
        m.linear, "bias", nn.Parameter(torch.zeros(2))
    ),
    "model.training is False instead of True": lambda m: m.eval(),
    "Model.scale is 3.0 instead of 2.0": lambda m: setattr(Model, "scale", 3.0),
    "model._forward_hooks is '1 items' instead of 'empty'": lambda m: m.register_forward_hook(
        lambda *given: None
    ),
}
del CHANGES["model.nan is new"]


def test_variables_of_the_environment_are_watched_where_code_reads_them(monkeypatch):
    """By a constant of the module, or by name; others may change."""
    before = StateSnapshot({}, static_reach([reads_the_environment]))
    monkeypatch.setenv("SCHEDSIM_UNREAD", "1")
    assert before.change() is None
    monkeypatch.setenv(VARIABLE, "2")
    assert str(before.change()) == f"os.environ['{VARIABLE}'] is new"
    after = before.again()
    before.restore()
    assert VARIABLE not in os.environ
    assert str(after.change()) == f"os.environ['{VARIABLE}'] is gone"


@pytest.mark.parametrize("says", CHANGES)
def test_a_change_is_named_and_put_back(says):
    """By the path on which a user would find it."""
    model = Model()
    before = StateSnapshot({"model": model})
    assert before.change() is None
    CHANGES[says](model)
    try:
        assert says in map(str, before.changes())
        assert before.change() is not None
    finally:
        before.restore()
    assert before.changes() == []
    assert Model.scale == 2.0


def test_what_a_step_does_not_read_is_not_looked_at():
    """Contents of tensors, and what equals itself; a new form of a tensor is another step."""
    model = Model()
    before = StateSnapshot({"model": model})
    model.linear.weight.data.mul_(2)
    model.numbers = model.numbers
    model.nan = float("nan")
    assert before.change() is None
    model.linear.weight.requires_grad_(False)
    change = before.change()
    assert change.path == "model.linear.weight"


def test_another_root_takes_the_place_of_one():
    """As a loss that was replaced."""
    model, other = Model(), Model()
    other.numbers = [7, 8]
    before = StateSnapshot({"model": model, "loss": None})
    assert set(before.roots) == {"model"}
    assert before.of({"model": other}).roots["model"] is other
    model.numbers.append(3)
    assert before.again().change() is None
    assert before.num_places > 10


def test_a_snapshot_is_taken_again_only_where_something_has_changed():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    model.seen, model.history = 0, [1]
    before = StateSnapshot({"model": model}, static_reach([model]))
    assert before.change() is None
    assert before.again() is before
    model.seen = 1  # no step reads it, but whoever restores the later state must not set it back
    later = before.again()
    assert later is not before
    assert before.change() is None
    later.restore()
    assert model.seen == 1
    model[1].weight.data = torch.zeros(3, 2)
    assert later.again() is not later
