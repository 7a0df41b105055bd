"""Places of Python state: taken, put back, restored."""

from __future__ import annotations

from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.state import StateSnapshot  # noqa: E402
from schedsim.validation.guards.watched_places import (  # noqa: E402
    NO_PLACES,
    attribute,
    contents,
    fill,
    filled,
    store_in,
)
from torch import nn  # noqa: E402


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.numbers, self.log = [1, 2], {}


def test_changed_places_are_taken_and_put_again_and_again():
    """Only what changed; a place that was empty, too."""
    model = Model()
    before = StateSnapshot({"model": model})
    model.linear.register_forward_hook(hook := lambda *given: None)
    model.numbers.append(3)
    model.count = 1
    model.log["loss"] = 5
    places = before.changed()
    assert places
    assert not NO_PLACES
    warm = places.take()
    before.restore()
    assert model.numbers == [1, 2]
    assert not hasattr(model, "count")
    assert model.log == {}
    cold = places.take()
    for _ in range(2):
        places.put(warm)
        assert (model.numbers, model.count, model.log) == ([1, 2, 3], 1, {"loss": 5})
        assert list(model.linear._forward_hooks.values()) == [hook]
        places.put(cold)
        assert not list(model.linear._forward_hooks)
        assert (model.numbers, model.log) == ([1, 2], {})
        assert not hasattr(model, "count")
    assert not places.outside(["model"])
    assert len(places.outside(["model.numbers."]).places) == len(places.places) - 1


class Shouting(dict):
    """A dictionary whose own methods must not run while its content is put back."""

    def __setitem__(self, key, value):
        raise RuntimeError("nobody should write through me")


@pytest.mark.parametrize("kind", [dict, OrderedDict, Shouting])
def test_content_is_put_back_in_its_order_past_methods_of_its_own(kind):
    """Links of an ordered dictionary stay whole: hooks are walked by them."""
    table = kind({"b": 1, "a": 2})
    saved = contents(table)
    store_in(table)("c", 3)
    assert list(table) == ["b", "a", "c"]
    fill(table, saved)
    assert list(table) == list(reversed(list(reversed(table)))) == ["b", "a"]
    assert contents(table) == {"b": 1, "a": 2}


def test_an_attribute_in_a_slot_is_restored():
    class Slotted:
        __slots__ = ("value",)

    owner = Slotted()
    owner.value = 1
    place = attribute("owner.value", owner, "value")
    owner.value = 2
    assert [str(change) for change in place.changes()] == ["owner.value is 2 instead of 1"]
    place.restore()
    assert owner.value == 1


def test_tensors_are_keys_too():
    """As of the state of an optimizer, which a loss reaches that is a method of the trainer."""
    one, other = torch.zeros(3), torch.zeros(3)
    table = {one: 1}
    place = filled("table", table, None)
    place.saved = {other: 1}
    assert not place.is_as_saved()
    place.restore()
    assert next(iter(table)) is other
