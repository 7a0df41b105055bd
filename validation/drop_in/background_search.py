"""A search for a better schedule beside the loop: what it finds is taken up between steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("schedsim.drop_in")

Result = TypeVar("Result")


class BackgroundSearch(Generic[Result]):
    """One search at a time, in a thread of its own.

    Examples
    --------
    >>> search: BackgroundSearch[int] = BackgroundSearch()
    >>> search.start(lambda: 7), search.wait(), search.taken(), search.taken()
    (True, None, 7, None)
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: Result | None = None

    def start(self, search: Callable[[], Result]) -> bool:
        """Begin `search`, unless another runs or its result was not taken yet."""
        if self._thread is not None:
            return False

        def run() -> None:
            try:
                self._found = search()
            except Exception:  # the loop goes on with the schedule that it has
                log.exception("a search in the background failed")

        self._thread = threading.Thread(target=run, name="schedsim search")
        self._thread.start()
        return True

    def taken(self) -> Result | None:
        """What a search has found that has ended, once."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        found, self._thread, self._found = self._found, None, None
        return found

    def wait(self) -> None:
        """Until no search runs."""
        if self._thread is not None:
            self._thread.join()
