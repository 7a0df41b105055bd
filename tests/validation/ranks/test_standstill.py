"""Ranks that wait for each other in different places."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.ranks.standstill import (
    COLLECTIVE,
    FIRST_S,
    STANDSTILL_S,
    Board,
    Standing,
)


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
    waits = _waits(clock, "waits to start a step", COLLECTIVE)
    assert _turns(clock, waits, FIRST_S + STANDSTILL_S - 1) == []
    lines = set(_turns(clock, waits, 4))
    assert lines == {
        "the ranks wait for each other: rank 4 waits to start a step, rank 7 waits in a collective"
    }


def test_a_rank_that_goes_on_holds_nobody_up():
    """Or all stand in one place, as in a collective that takes long; or one rank does not stand."""
    clock = Clock()
    assert _turns(clock, _waits(clock, COLLECTIVE, COLLECTIVE), 3 * STANDSTILL_S) == []
    first, second = _waits(clock, "waits to start a step", COLLECTIVE)
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
