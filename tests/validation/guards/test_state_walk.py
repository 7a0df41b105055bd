"""What the walk through a step's state finds, and what it leaves out."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.guards import state_walk  # noqa: E402
from schedsim.validation.guards.reach import is_library  # noqa: E402
from schedsim.validation.guards.state import StateSnapshot  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


def test_iterators_are_found_and_too_much_is_refused(monkeypatch):
    """By their paths."""
    model = nn.Linear(2, 2)
    model.data = iter([1, 2])
    assert StateSnapshot({"model": model}).iterators == ["model.data"]
    monkeypatch.setattr(state_walk, "MOST_PLACES", 1)
    with pytest.raises(UnsupportedError, match="more than 1 places are reachable") as caught:
        StateSnapshot({"model": model})
    assert "data sets" in caught.value.hint


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


def test_an_op_of_the_users_own_is_what_its_functions_read():
    """What torch notes beside them when the op first runs is no state of a step."""
    factors = [2.0]

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factors[0]

    op = torch.library.custom_op("schedsim_tests::scaled_walk", scaled, mutates_args=())
    op.register_fake(torch.empty_like)
    before = StateSnapshot({"op": op})
    op(torch.ones(2))
    assert before.change() is None
    factors[0] = 3.0
    assert before.change().path == "op._init_fn: factors[0]"
