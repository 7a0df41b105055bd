"""The processes of these tests: they serve one call after the other, each in a group of its own."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import rank_processes
from rank_processes import ONCE, RankProcessError, run_ranks


def _look(rank, change):
    import torch.distributed as dist

    seen = os.getpid(), os.environ.get("CHANGED"), dist.get_rank() == rank
    os.environ["CHANGED"] = change
    return seen


def _failing(rank):
    if rank == 1:
        raise ValueError("the disk is full")


def test_processes_serve_again_until_a_call_has_failed(monkeypatch):
    """What one call changes of the environment is not there in the next; errors come with text."""
    monkeypatch.delenv(ONCE, raising=False)
    run_ranks(_look, 2, "once")
    first, second = run_ranks(_look, 2, "once"), run_ranks(_look, 2, "twice")
    assert first == second
    assert [row[1:] for row in first] == [(None, True)] * 2
    with pytest.raises(RankProcessError, match="the disk is full"):
        run_ranks(_failing, 2)
    third = run_ranks(_look, 2, "again")
    assert {pid for pid, *_ in third}.isdisjoint(pid for pid, *_ in first)
    monkeypatch.setenv(ONCE, "1")
    assert run_ranks(_look, 2, "alone")[0][0] != run_ranks(_look, 2, "alone")[0][0]


@pytest.mark.slow
def test_processes_of_a_call_have_served_the_same_calls(monkeypatch):
    """After a failed call, and after calls of other numbers of ranks, none is mixed with others."""
    monkeypatch.delenv(ONCE, raising=False)
    four = [pid for pid, *_ in run_ranks(_look, 4, "four")]
    two = [pid for pid, *_ in run_ranks(_look, 2, "two")]
    assert set(four).isdisjoint(two)
    with pytest.raises(RankProcessError, match="the disk is full"):
        run_ranks(_failing, 2)
    fresh = [pid for pid, *_ in run_ranks(_look, 2, "fresh")]
    assert set(fresh).isdisjoint(four + two)
    assert [pid for pid, *_ in run_ranks(_look, 4, "four again")] == four
    assert [pid for pid, *_ in run_ranks(_look, 2, "fresh again")] == fresh


def test_a_process_that_died_between_calls_takes_the_others_along(monkeypatch):
    """The others would be ranks beside one that has served nothing."""
    monkeypatch.delenv(ONCE, raising=False)
    before = [pid for pid, *_ in run_ranks(_look, 2, "before")]
    os.kill(before[1], signal.SIGKILL)
    rank_processes._idle[2][1].process.join()
    after = [pid for pid, *_ in run_ranks(_look, 2, "after")]
    assert set(after).isdisjoint(before)
