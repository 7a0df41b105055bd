"""Ranks that are to plan together: who is late is told of, and given up in the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..user_warnings import warn_user
from .failures import RankError, agree_on

ARRIVAL_S = 300.0
"""Seconds after which ranks that have not come to plan are given up."""

FIRST_ARRIVAL_S = 1800.0
"""The same before the first plan of a group: one rank may prepare the data of all until then."""

NOTICE_S = 15.0
"""Seconds after which a warning names the ranks that are waited for."""

LOOK_S = 0.02
"""Seconds between two looks at who has come."""


class LateRanksWarning(UserWarning):
    """A rank waits for others, which may never come."""


class Notice:
    """The warning of one wait of a rank, given once.

    Parameters
    ----------
    late
        Called once the wait is long; the ranks that have not come.
    until_s
        Seconds after which they are given up.
    """

    def __init__(
        self,
        rank: int,
        what: str,
        late: Callable[[], list[int]],
        until_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank, self.what, self.late, self.clock = rank, what, late, clock
        self.until_s = until_s
        self._due: float | None = clock() + NOTICE_S

    def turn(self) -> None:
        """Warn, if it is time."""
        if self._due is None or self.clock() < self._due:
            return
        self._due = None
        late = self.late()
        if late:
            warn_user(
                f"rank {self.rank} waits for ranks {late} to {self.what}: all ranks must call it; "
                f"they are given up after {self.until_s:g} s",
                LateRanksWarning,
            )


def await_arrivals(
    store: Any,
    key: str,
    members: tuple[int, ...],
    rank: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait in `store` until all `members` have come, before they make a group of their own.

    Making a group waits for them in C++, and names nobody.

    Raises
    ------
    RankError
        Some have not come within `FIRST_ARRIVAL_S`, or have given up; the message names them.
    """
    given_up = f"{key}/given up"
    what = "plan the first step"

    def late() -> list[int]:
        return [one for one in members if not store.check([f"{key}/{one}"])]

    store.set(f"{key}/{rank}", "")
    notice, end = Notice(rank, what, late, FIRST_ARRIVAL_S, clock), clock() + FIRST_ARRIVAL_S
    while missing := late():
        if clock() > end:
            store.set(given_up, str(rank))
            raise agree_on(
                RankError(
                    f"ranks {missing} did not come to {what} within {FIRST_ARRIVAL_S:g} s; "
                    "all ranks must call it"
                )
            )
        notice.turn()
        time.sleep(LOOK_S)
    if store.check([given_up]):
        raise agree_on(
            RankError(
                f"rank {int(store.get(given_up))} has given up rank {rank}, which came to {what} "
                f"after more than {FIRST_ARRIVAL_S:g} s"
            )
        )
