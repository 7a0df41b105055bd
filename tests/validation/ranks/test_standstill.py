"""Ranks that wait for each other in different places."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.standstill import (
    COLLECTIVE,
    FIRST_S,
    STANDSTILL_S,
    Absence,
    Board,
    Standing,
    WaitingPlace,
)

START = WaitingPlace("waits to start a step")


class Store(dict):
    """The store of a process group."""

    def set(self, key, value):
        """Set."""
        self[key] = value.encode()

    def check(self, keys):
        """Whether all are there."""
        return all(key in self for key in keys)


class Clock:
    """Stands until it is told."""

    now = 0.0

    def __call__(self):
        """Seconds."""
        return self.now


def _waits(clock, *places):
    store = Store()
    boards = [Board(store, (4, 7), rank) for rank in (4, 7)]
    return [Standing(board, place, clock) for board, place in zip(boards, places, strict=True)]


def _turns(clock, standings, seconds):
    found = []
    for _ in range(int(seconds)):
        clock.now += 1.0
        found += [standing.turn() for standing in standings]
    return [line for line in found if line is not None]


def test_ranks_that_stand_in_different_places_hear_of_it():
    """Not before the time is over; the line says where each waits."""
    clock = Clock()
    waits = _waits(clock, START, COLLECTIVE)
    assert _turns(clock, waits, FIRST_S + STANDSTILL_S - 1) == []
    lines = set(_turns(clock, waits, 4))
    assert lines == {
        "the ranks wait for each other: rank 4 waits to start a step, rank 7 waits in a collective"
    }


def test_a_rank_that_goes_on_holds_nobody_up():
    """Or all stand in one place, as in a collective that takes long; or one rank does not stand."""
    clock = Clock()
    assert _turns(clock, _waits(clock, COLLECTIVE, COLLECTIVE), 3 * STANDSTILL_S) == []
    first, second = _waits(clock, START, COLLECTIVE)
    assert _turns(clock, [first], 3 * STANDSTILL_S) == []
    for _ in range(3):
        assert _turns(clock, [first, second], STANDSTILL_S - 5) == []
        second.over()
        second = Standing(second.board, COLLECTIVE, clock)


def test_ranks_beside_those_of_the_channel_may_be_waited_for():
    """Then nothing is known, and nothing is said."""
    clock = Clock()
    standing = Standing(None, COLLECTIVE, clock)
    assert _turns(clock, [standing], 3 * STANDSTILL_S) == []
    standing.over()


def test_ranks_that_wait_for_others_of_their_group_stand_together():
    """Replicas gather in pairs: those of another pair are not waited for."""
    clock, store = Clock(), Store()
    ranks = (0, 1, 2, 3)
    pairs = [
        WaitingPlace("waits", (0, 1)),
        WaitingPlace("waits", (0, 1)),
        WaitingPlace("waits", (2, 3)),
    ]
    elsewhere = WaitingPlace("waits", (1, 3))

    def lines(last):
        boards = [Board(store, ranks, rank) for rank in ranks]
        places = zip(boards, [*pairs, last], strict=True)
        return _turns(clock, [Standing(b, p, clock) for b, p in places], STANDSTILL_S + 5)

    assert lines(WaitingPlace("waits", (2, 3))) == []
    assert lines(elsewhere)[0].startswith("the ranks wait for each other: rank 0 waits, rank 1")


def test_a_rank_that_left_a_step_is_missed():
    """Until it begins another one; each time that it leaves counts anew."""
    clock, store = Clock(), Store()
    mine, other = (Board(store, (0, 1), rank) for rank in (0, 1))
    absence = Absence(mine, clock)
    for seconds in (STANDSTILL_S - 1, 2.0):
        assert absence.turn() is None
        other.leave("ValueError: no")
        assert absence.turn() is None
        clock.now += seconds
    line = "rank 1 left a step by ValueError: no (and began no other for 30 s, in which others wait"
    assert absence.turn() is None
    clock.now += STANDSTILL_S
    assert absence.turn() == f"{line} for it)"
    other.come_back()
    assert absence.turn() is None
    waits = Standing(mine, COLLECTIVE, clock)
    other.leave("ValueError: no")
    assert _turns(clock, [waits], STANDSTILL_S + 4)[0].startswith("rank 1 left a step")
