"""Ranks that wait for each other in different places, as when one has left a step halfway.

A loop may catch an error of its own and go on with the next step, for which that rank then waits,
while the others still wait in a collective of the last one. A rank that waits for long says where,
in the store of the process group. Where all ranks wait, none has gone on for `STANDSTILL_S`, and
they wait in different places, none ever will.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

FIRST_S, EVERY_S = 2.0, 1.0
"""Seconds after which a rank says where it waits, and between its looks at what others say."""

STANDSTILL_S = 30.0
"""Seconds for which nobody has gone on; a message between two ranks may take some of them."""

COLLECTIVE = "waits in a collective"


class Board:
    """Where the ranks of one channel say that they wait, and for what."""

    def __init__(self, store: Any, members: tuple[int, ...], rank: int) -> None:
        self.store, self.members, self.rank = store, members, rank
        self._numbers = itertools.count(1)

    def put(self, where: str) -> None:
        """Say that this rank waits; no two waits are said alike."""
        self.store.set(self._key(self.rank), f"{next(self._numbers)}:{where}")

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

    def _key(self, rank: int) -> str:
        return f"waits/{rank}"


class Standing:
    """One wait of a rank.

    Parameters
    ----------
    board
        ``None`` where there are ranks beside those of the channel, for which others may wait.
    """

    def __init__(
        self, board: Board | None, where: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.board, self.where, self.clock = board, where, clock
        self._due = clock() + FIRST_S
        self._is_put = False
        self._seen: list[str] | None = None
        self._since = 0.0

    def turn(self) -> str | None:
        """Look whether all ranks stand still; the line that says where, or ``None``."""
        now = self.clock()
        if self.board is None or now < self._due:
            return None
        self._due = now + EVERY_S
        if not self._is_put:
            self.board.put(self.where)
            self._is_put = True
        rows = self.board.read()
        if rows is None or rows != self._seen:
            self._seen, self._since = rows, now
            return None
        places = [row.partition(":")[2] for row in rows]
        if now - self._since < STANDSTILL_S or len(set(places)) == 1:
            return None
        pairs = zip(self.board.members, places, strict=True)
        lines = ", ".join(f"rank {rank} {place}" for rank, place in pairs)
        return f"the ranks wait for each other: {lines}"

    def over(self) -> None:
        """The wait has ended."""
        if self._is_put and self.board is not None:
            self.board.clear()
