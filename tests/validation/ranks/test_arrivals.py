"""Ranks that come to plan together, or do not."""

from __future__ import annotations

import threading
import warnings
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.ranks import RankError, arrivals  # noqa: E402
from schedsim.validation.ranks.arrivals import (  # noqa: E402
    LateRanksWarning,
    Notice,
    await_arrivals,
)
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


def test_a_notice_is_given_once_and_names_who_is_late():
    """None before its time, and none where all have come."""
    now, late = [0.0], [[1, 3]]
    notice = Notice(0, "plan", lambda: late[0], 300.0, lambda: now[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notice.turn()
        now[0] = arrivals.NOTICE_S
        notice.turn()
        notice.turn()
        late[0] = []
        other = Notice(0, "plan", lambda: late[0], 300.0, lambda: now[0])
        now[0] *= 2
        other.turn()
    [one] = caught
    assert one.category is LateRanksWarning
    assert "rank 0 waits for ranks [1, 3] to plan" in str(one.message)


def test_all_that_come_go_on():
    """Whoever is the last."""
    store = torch.distributed.HashStore()
    others = [
        threading.Thread(target=await_arrivals, args=(store, "k", (0, 1, 2), rank))
        for rank in (1, 2)
    ]
    for one in others:
        one.start()
    await_arrivals(store, "k", (0, 1, 2), 0)
    for one in others:
        one.join(10)
        assert not one.is_alive()


def test_who_does_not_come_is_given_up_and_told(monkeypatch):
    """A line on both sides, in place of a wait for a group that is never made."""
    monkeypatch.setattr(arrivals, "FIRST_ARRIVAL_S", 0.1)
    store = torch.distributed.HashStore()
    with pytest.raises(RankError, match=r"ranks \[1\] did not come to plan the first step"):
        await_arrivals(store, "k", (0, 1), 0)
    with pytest.raises(RankError, match="rank 0 has given up rank 1"):
        await_arrivals(store, "k", (0, 1), 1)


SOON = {"NOTICE_S": 0.2, "ARRIVAL_S": 1.5, "FIRST_ARRIVAL_S": 1.5}


def _planned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    schedsim.rematerialize(model, torch.randn(16, 8), "100%", in_place=True, effort=0.1)


def _one_alone(rank, times_together):
    """What rank 0 hears that gives a budget once more than rank 1."""
    for _ in range(times_together):  # on a busy machine one of them may wait for long
        _planned()
    with mock.patch.multiple(arrivals, **SOON), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = None
        try:
            for _ in range(rank == 0):
                _planned()
        except RankError as found:
            error = str(found)
        torch.distributed.barrier()
    return [error, *(str(one.message) for one in caught if one.category is LateRanksWarning)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times_together", "what"),
    [pytest.param(0, "plan the first step", marks=pytest.mark.slow), (1, "rematerialize")],
)
def test_a_budget_that_one_rank_gives_alone_is_told(times_together, what):
    """By a warning while it waits, and an error in the end."""
    found, nothing = run_ranks(_one_alone, 2, times_together, timeout_s=60)
    assert nothing == [None]
    error, warning = found
    assert f"ranks [1] did not come to {what} within 1.5 s" in error
    assert f"rank 0 waits for ranks [1] to {what}" in warning
    assert "given up after 1.5 s" in warning
