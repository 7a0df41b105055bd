"""What of a step's Python is watched, and what a step could use up."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards.reach import is_library  # noqa: E402
from schedsim.validation.guards.state import StateSnapshot  # noqa: E402
from torch import nn  # noqa: E402


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


def test_changes_are_told_by_their_path():
    """Attributes of modules, items of containers and plain objects; nothing where nothing is."""
    net = nn.Sequential(nn.Linear(1, 1))
    net[0].scale, net[0].table = 1.0, {"a": [1, 2]}
    net.options = types.SimpleNamespace(width=3)
    before = StateSnapshot({"model": net})
    assert list(before.changes()) == []
    net[0].scale = 2.0
    net[0].table["a"][1] = 5
    net.options.width = 4
    paths = {change.path for change in before.changes()}
    assert paths == {"model.0.scale", "model.0.table['a'][1]", "model.options.width"}


def test_progress_bars_are_a_library():
    """They hold on to the terminal, which no step reads."""
    assert is_library("tqdm.std")
    assert not is_library("tqdm_of_mine")
