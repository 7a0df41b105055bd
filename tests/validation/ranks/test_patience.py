"""Waiting for other ranks without waiting for ever."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed")

from schedsim.validation.ranks import patience  # noqa: E402
from schedsim.validation.ranks.failures import Interrupted  # noqa: E402
from schedsim.validation.ranks.patience import (  # noqa: E402
    TIMED_OUT,
    Hearing,
    Lookout,
    wait_in_turns,
)
from schedsim.validation.ranks.standstill import COLLECTIVE, Standing  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")


class Store:
    """The store of a process group: a message appears when the test says so."""

    def __init__(self) -> None:
        self.message: bytes | None = None
        self.looks = 0
        self.gone = False

    def check(self, keys):
        self.looks += 1
        if self.gone:
            raise RuntimeError("connection reset")
        return self.message is not None

    def get(self, key):
        return self.message


def test_a_wait_is_taken_up_again_until_it_returns():
    """After every turn somebody may give up; other errors come through at once."""
    turns = []

    def wait(timeout):
        assert timeout == timedelta(seconds=patience.TURN_S)
        turns.append("turn")
        if len(turns) < 3:
            raise RuntimeError(f"{TIMED_OUT} after 250 ms")
        return "there"

    looked = []
    assert wait_in_turns(wait, lambda: looked.append(1)) == "there"
    assert (len(turns), len(looked)) == (3, 2)

    def broken(timeout):
        raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        wait_in_turns(broken, lambda: pytest.fail("it is no turn that is over"))


def test_giving_up_ends_the_wait():
    """By what it raises."""

    def wait(timeout):
        raise RuntimeError(TIMED_OUT)

    def give_up():
        raise Interrupted("another rank has failed")

    with pytest.raises(Interrupted):
        wait_in_turns(wait, give_up)


@pytest.mark.parametrize("gone", [False, True])
def test_a_failure_elsewhere_interrupts_a_wait_here(monkeypatch, gone):
    """Told in the store, or as the store is gone; torch's own wait comes back afterwards."""
    monkeypatch.setattr(patience, "TURN_S", 0.01)
    store, own = Store(), dist.Work.wait
    begun = threading.Event()

    def never(work, timeout=None):
        begun.set()
        raise RuntimeError(TIMED_OUT)

    monkeypatch.setattr(dist.Work, "wait", never)
    lookout = Lookout(store, "failed/1", "rank 0", interrupts=True, num_ranks=2)
    with lookout:
        dist.Work.wait  # noqa: B018
        store.gone = gone
        store.message = b"rank 1 failed"
        with pytest.raises(Interrupted, match="another rank has failed"):
            dist.Work.wait(None)
    assert begun.is_set()
    assert lookout.failed.is_set()
    assert dist.Work.wait is never
    monkeypatch.undo()
    assert dist.Work.wait is own


def test_a_wait_with_a_time_of_its_own_is_left_alone(monkeypatch):
    """It ends by itself."""
    given = []
    monkeypatch.setattr(dist.Work, "wait", lambda work, timeout=None: given.append(timeout))
    with Lookout(Store(), "failed/1", "rank 0", interrupts=True, num_ranks=2):
        dist.Work.wait(None, timedelta(seconds=3))
        dist.Work.wait(None, timedelta(0))
    assert given == [timedelta(seconds=3), timedelta(seconds=patience.TURN_S)]


def test_a_channel_that_is_made_under_a_lookout_is_heard_after_it(monkeypatch):
    """The end of the lookout takes its own part away, and no more."""
    monkeypatch.setattr(dist.Work, "wait", lambda work, timeout=None: "there")
    hearing, heard = Hearing(), []

    class Channel:
        is_current = True

        def standing(self, where):
            heard.append(where)
            return Standing(None, where)

    monkeypatch.setattr(patience, "HEARING", hearing)
    with Lookout(Store(), "failed/1", "rank 0", interrupts=True, num_ranks=2):
        hearing.add(Channel())
        assert dist.Work.wait(None) == "there"
    assert heard == []
    assert dist.Work.wait(None) == "there"
    assert [where() for where in heard] == [COLLECTIVE]


def test_without_a_failure_the_lookout_goes_home(monkeypatch):
    """Its thread ends with the block; many ranks look more seldom."""
    monkeypatch.setattr(patience, "TURN_S", 0.01)
    store = Store()
    lookout = Lookout(store, "failed/1", "rank 0", interrupts=False, num_ranks=64)
    assert lookout.every_s == 0.04
    own = dist.Work.wait
    with lookout:
        assert dist.Work.wait is own
        while store.looks < 2:
            pass
    assert not lookout.failed.is_set()
    assert not lookout._thread.is_alive()


def test_a_rank_that_cannot_come_back_ends_its_process(monkeypatch, capsys):
    """After the grace, with the message of the rank that failed."""
    monkeypatch.setattr(patience, "TURN_S", 0.01)
    monkeypatch.setattr(patience, "GRACE_S", 0.03)
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(patience.os, "_exit", lambda code: (codes.append(code), ended.set()))
    store = Store()
    store.message = b"rank 1 failed to measure: OSError: disk"
    with Lookout(store, "failed/1", "rank 0", interrupts=False, num_ranks=2):
        assert ended.wait(10)
    assert codes == [1]
    said = capsys.readouterr().err
    assert "error: rank 1 failed to measure: OSError: disk" in said
    assert "hint: rank 0 waits in a collective that cannot be interrupted" in said
