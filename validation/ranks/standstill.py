"""Ranks that wait for each other in different places, as when one has left a step halfway.

A loop may catch an error of its own and go on with the next step, for which that rank then waits,
while the others still wait in a collective of the last one. A rank that waits for long says where,
in the store of the process group. Where all ranks wait, none has gone on for `STANDSTILL_S`, and
one waits for another that waits elsewhere, none ever will. A rank may also leave a step by an
error and do nothing more, as in a notebook: then it waits nowhere, but has said by what it left.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIRST_S, EVERY_S = 2.0, 1.0
"""Seconds after which a rank says where it waits, and between its looks at what others say."""

STANDSTILL_S = 30.0
"""Seconds for which nobody has gone on; a message between two ranks may take some of them."""


@dataclass(frozen=True)
class WaitingPlace:
    """Where a rank waits, in words, and the ranks that it waits for; none where all are meant."""

    words: str
    members: tuple[int, ...] = ()


COLLECTIVE = WaitingPlace("waits in a collective")


class Board:
    """Where the ranks of one channel say that they wait, and for what."""

    def __init__(self, store: Any, members: tuple[int, ...], rank: int) -> None:
        self.store, self.members, self.rank = store, members, rank
        self._numbers = itertools.count(1)
        self._has_left = False

    def put(self, place: WaitingPlace) -> None:
        """Say that this rank waits; no two waits are said alike."""
        members = ",".join(map(str, place.members or self.members))
        self.store.set(self._key(self.rank), f"{next(self._numbers)}:{members}:{place.words}")

    def clear(self) -> None:
        """Say that it does no more."""
        self.store.set(self._key(self.rank), "")

    def read(self) -> list[str] | None:
        """What each rank has said; ``None`` where one does not wait."""
        keys = [self._key(rank) for rank in self.members]
        if not self.store.check(keys):
            return None
        rows = [self.store.get(key).decode() for key in keys]
        return rows if all(rows) else None

    def leave(self, words: str) -> None:
        """Say by what this rank has left a step."""
        self._has_left = True
        self.store.set(f"left/{self.rank}", f"{next(self._numbers)}:{words}")
        self.store.set("left", "")

    def come_back(self) -> None:
        """Say that it begins another step, if it had left one."""
        if self._has_left:
            self._has_left = False
            self.store.set(f"left/{self.rank}", "")

    def left(self) -> dict[int, str]:
        """What other ranks have said by which they left, of those that have not come back."""
        if not self.store.check(["left"]):
            return {}
        others = [rank for rank in self.members if rank != self.rank]
        there = [rank for rank in others if self.store.check([f"left/{rank}"])]
        rows = {rank: self.store.get(f"left/{rank}").decode() for rank in there}
        return {rank: row for rank, row in rows.items() if row}

    def _key(self, rank: int) -> str:
        return f"waits/{rank}"


class Absence:
    """How long other ranks have been away from any step, since they left one by an error."""

    def __init__(self, board: Board, clock: Callable[[], float] = time.monotonic) -> None:
        self.board, self.clock = board, clock
        self._since: dict[tuple[int, str], float] = {}

    def turn(self) -> str | None:
        """Look who is away; the line that says who has been for long, or ``None``."""
        now, rows = self.clock(), self.board.left()
        self._since = {item: self._since.get(item, now) for item in rows.items()}
        for (rank, row), since in self._since.items():
            if now - since >= STANDSTILL_S:
                words = row.partition(":")[2]
                return (
                    f"rank {rank} left a step by {words} (and began no other for "
                    f"{STANDSTILL_S:g} s, in which others wait for it)"
                )
        return None


class Standing:
    """One wait of a rank.

    Parameters
    ----------
    board
        ``None`` where there are ranks beside those of the channel, for which others may wait.
    where
        A function is called once the wait is long.
    """

    def __init__(
        self,
        board: Board | None,
        where: WaitingPlace | Callable[[], WaitingPlace],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.board, self.where, self.clock = board, where, clock
        self._absence = None if board is None else Absence(board, clock)
        self._due = clock() + FIRST_S
        self._is_put = False
        self._seen: list[str] | None = None
        self._since = 0.0

    def turn(self) -> str | None:
        """Look whether all ranks stand still; the line that says where, or ``None``."""
        now = self.clock()
        if self.board is None or self._absence is None or now < self._due:
            return None
        self._due = now + EVERY_S
        if not self._is_put:
            self.board.put(self.where if isinstance(self.where, WaitingPlace) else self.where())
            self._is_put = True
        line = self._absence.turn()
        rows = self.board.read()
        if line is not None or rows is None or rows != self._seen:
            self._seen, self._since = rows, now
            return line
        places = dict(zip(self.board.members, map(_place, rows), strict=True))
        if now - self._since < STANDSTILL_S or not _is_apart(places):
            return None
        lines = ", ".join(f"rank {rank} {place.words}" for rank, place in places.items())
        return f"the ranks wait for each other: {lines}"

    def over(self) -> None:
        """The wait has ended."""
        if self._is_put and self.board is not None:
            self.board.clear()


def _place(row: str) -> WaitingPlace:
    _, members, words = row.split(":", 2)
    return WaitingPlace(words, tuple(map(int, members.split(","))))


def _is_apart(places: dict[int, WaitingPlace]) -> bool:
    """Whether some rank waits for another that waits elsewhere."""
    return any(
        places.get(other, place) != place for place in places.values() for other in place.members
    )
