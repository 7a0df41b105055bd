"""The Python that a step can read: what changed of it, in words, and put back."""

from __future__ import annotations

import os
import random
from collections import OrderedDict, deque
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards import state  # noqa: E402
from schedsim.validation.guards.reach import is_library, static_reach  # noqa: E402
from schedsim.validation.guards.state import NO_PLACES, StateSnapshot, same, shown  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402

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


def test_generators_that_moved_on_are_told_and_put_back():
    """They are no changes: others may draw from them between steps."""
    model = Model()
    model.numpy, model.legacy = np.random.default_rng(1), np.random.RandomState(2)
    before = StateSnapshot({"model": model})
    assert before.draws() == []
    first = model.draw.random(), model.numpy.random(), model.legacy.rand()
    assert before.draws() == ["model.draw", "model.numpy", "model.legacy"]
    assert before.change() is None
    before.restore()
    assert (model.draw.random(), model.numpy.random(), model.legacy.rand()) == first


def test_changed_places_are_taken_and_put_again_and_again():
    """Only what changed; a place that was empty, too."""
    model = Model()
    model.log = {}
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


def test_equality_is_by_value_of_small_things_and_by_identity_of_others():
    """Kinds count."""
    assert same((1, "a", None), (1, "a", None))
    assert same(float("nan"), float("nan"))
    assert not same(True, 1)
    assert not same([1], [1])
    model = Model()
    assert same(model.eval, model.eval)
    assert not same(model.eval, Model().eval)


def test_values_are_shown_in_a_few_words():
    """Tensors by shape, functions by name, long texts cut."""
    assert shown(torch.zeros(2, 3)) == "Tensor of shape (2, 3)"
    assert shown(nn.Linear.forward) == "function Linear.forward"
    assert shown("x" * 100) == repr("x" * 100)[:37] + "..."
    assert shown(OrderedDict()) == "OrderedDict"


def test_iterators_are_found_and_too_much_is_refused(monkeypatch):
    """By their paths."""
    model = Model()
    model.data = iter([1, 2])
    assert StateSnapshot({"model": model}).iterators == ["model.data"]
    monkeypatch.setattr(state, "MOST_PLACES", 3)
    with pytest.raises(UnsupportedError, match="more than 3 places are reachable") as caught:
        StateSnapshot({"model": model})
    assert "data sets" in caught.value.hint


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


def test_iterators_are_told_and_streams_that_are_written_to_are_none(tmp_path):
    """A log that a model writes is not used up; a file that it reads is."""
    path = tmp_path / "numbers.txt"
    path.write_text("1\n2\n")
    net = nn.Linear(1, 1)
    with path.open() as reading, (tmp_path / "log.txt").open("w") as writing:
        net.log, net.ended = writing, (tmp_path / "other.txt").open("w")
        net.ended.close()
        assert StateSnapshot({"model": net}).iterators == []
        net.numbers = reading
        assert StateSnapshot({"model": net}).iterators == ["model.numbers"]
        net.numbers = (n for n in (1, 2))
        assert StateSnapshot({"model": net}).iterators == ["model.numbers"]


def test_progress_bars_are_a_library():
    """They hold on to the terminal, which no step reads."""
    assert is_library("tqdm.std")
    assert not is_library("tqdm_of_mine")


def test_an_object_that_has_no_length_is_walked():
    """Layouts of device meshes raise where somebody asks for theirs."""

    class Layout:
        def __init__(self):
            self.size = 1

        def __len__(self):
            raise RuntimeError("nobody should ask")

    root = Layout()
    before = StateSnapshot({"layout": root})
    root.size = 2
    assert str(before.change()) == "layout.size is 2 instead of 1"
