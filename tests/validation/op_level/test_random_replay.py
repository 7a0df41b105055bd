"""Random numbers of repeated runs: those of the first, with the generator left where it was."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.op_level.random_replay import RandomReplay  # noqa: E402


def draw(num: int, *, fails: bool = False) -> torch.Tensor:
    found = torch.rand(num)
    if fails:
        raise KeyError
    return found


def test_repeats_draw_the_first_numbers_and_others_go_on():
    """Two ops in turn, each repeated later; the plain sequence is not disturbed."""
    torch.manual_seed(3)
    plain = [torch.rand(4), torch.rand(2), torch.rand(3)]
    torch.manual_seed(3)
    replay = RandomReplay(2, "cpu")
    one, two = replay.first(0, draw, 4), replay.first(1, draw, num=2)
    again = [replay.again(1, draw, 2), replay.again(0, draw, 4), replay.last(0, draw, 4)]
    assert all(map(torch.equal, (one, two), plain))
    assert all(map(torch.equal, again, (two, one, one)))
    assert torch.equal(torch.rand(3), plain[2])
    assert replay.states[0] is None
    assert replay.states[1] is not None


def test_a_repeat_that_fails_leaves_the_generator_too():
    """And the last one forgets its state all the same."""
    replay = RandomReplay(1, "cpu")
    replay.first(0, draw, 4)
    before = replay.state()
    with pytest.raises(KeyError):
        replay.last(0, draw, 4, fails=True)
    assert torch.equal(replay.state(), before)
    assert replay.states == [None]


def test_a_state_that_is_put_is_the_generators():
    """As when a step begins again."""
    replay = RandomReplay(1, "cpu")
    state = replay.state()
    one = torch.rand(2)
    replay.put(state)
    assert torch.equal(torch.rand(2), one)
