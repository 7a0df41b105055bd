"""A search for a better schedule beside the loop; its result is used from the next step on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("schedsim.drop_in")

Result = TypeVar("Result")

_ENDS_S = 1.0
"""Seconds in which a process ends, once its threads take no more work."""


class BackgroundSearch(Generic[Result]):
    """Runs one search at a time, in its own thread.

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
        """Begin `search`, unless a search is running or its result has not been taken yet."""
        if self.is_busy:
            return False

        def run() -> None:
            try:
                self._found = search()
            except Exception:  # the loop goes on with its present schedule
                # If the process ends, threads for a search may do so before the main thread.
                threading.main_thread().join(_ENDS_S)
                if threading.main_thread().is_alive():
                    log.exception("a search in the background failed")

        self._thread = threading.Thread(target=run, name="schedsim search")
        self._thread.start()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether a search runs, or its result has not been taken yet."""
        return self._thread is not None

    def taken(self) -> Result | None:
        """The result of a search that has ended; it is given once."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread.join()
        found, self._thread, self._found = self._found, None, None
        return found

    def wait(self) -> None:
        """Wait until no search runs."""
        if self._thread is not None:
            self._thread.join()
