"""Ranks that are threads of one process, each with its part of every exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from schedsim.validation.ranks.failures import agree_on, heard, is_agreed, told
from schedsim.validation.ranks.ranks import Ranks

TIMEOUT_S = 20.0


class _Table:
    """The table in which the ranks of one meeting leave their messages."""

    def __init__(self, num: int) -> None:
        self.rows: list[Any] = [None] * num
        self.barrier = threading.Barrier(num, timeout=TIMEOUT_S)

    def meet(self, rank: int, value: Any) -> list[Any]:
        self.rows[rank] = value
        self.barrier.wait()
        found = list(self.rows)
        self.barrier.wait()
        return found


class ThreadRanks(Ranks):
    """The calls of `Ranks` among threads."""

    def __init__(self, table: _Table, rank: int, num: int) -> None:
        super().__init__(tuple(range(num)), bound=True, channel=None)
        self.table, self.rank = table, rank

    @property
    def alone(self) -> bool:
        return False

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any, what: str = "agree") -> list[Any]:
        return self.table.meet(self.rank, value)

    def together(self, what: str, work: Callable[[], Any], *, runs_model: bool = False) -> Any:
        error: Exception | None = None
        found = None
        try:
            found = work()
        except Exception as caught:
            if is_agreed(caught):
                raise
            error = caught
        rows = self.table.meet(self.rank, None if error is None else told(error))
        failed = next((rank for rank, row in enumerate(rows) if row is not None), None)
        if failed is None:
            return found
        raise agree_on(error if failed == self.rank else heard(rows[failed], failed, what))

    def from_first(self, value: Any, what: str = "agree") -> Any:
        return self.table.meet(self.rank, value)[0]

    def largest(self, ints: Any, floats: Any) -> Any:
        rows = self.table.meet(self.rank, (list(ints), list(floats)))
        return tuple(
            [max(column) for column in zip(*lists, strict=True)]
            for lists in zip(*rows, strict=True)
        )


def on_ranks(num: int, work: Callable[[Ranks, int], Any]) -> list[Any]:
    """``work(ranks, rank)`` on each; what it gives, or the error that it raises."""
    table = _Table(num)
    found: list[Any] = [None] * num

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadRanks(table, rank, num), rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S)
    return found
