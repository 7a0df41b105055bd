"""Progress of a long search: elapsed time, the best step time so far, the gap to its bound.

A planner asks for the `current` progress when it begins, and calls `report` where its threads meet
anyway, from any thread and as often as it likes. The planner does not know who listens: the command
line shows a line on a terminal; every other program finds a line every ten seconds in the log
``schedsim.progress``, at level ``INFO``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..units import format_seconds

_LOG_EVERY_S = 10.0

_log = logging.getLogger("schedsim.progress")


class Progress:
    """One search: when it began, its best step time so far, and its proven bound.

    Attributes
    ----------
    what
        The search in words.
    best_s
        The least step time found within the budget; infinite while there is none.
    bound_s
        No schedule is faster; 0 where nothing is proven.

    Examples
    --------
    >>> progress = Progress("a step")
    >>> progress.report(best_s=1.5), progress.report(bound_s=1.2), progress.report(best_s=2.0)
    (None, None, None)
    >>> progress.best_s, round(progress.gap, 9), str(progress).partition(", ")[2]
    (1.5, 0.25, 'best 1.5 s, gap 25.00 %')
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.began_s = time.perf_counter()
        self.best_s, self.bound_s = math.inf, 0.0
        self._lock = threading.Lock()
        self._logged_s = self.began_s

    def report(self, best_s: float = math.inf, bound_s: float = 0.0) -> None:
        """Report a step time or a bound; one that is no better changes nothing. O(1)."""
        with self._lock:
            self.best_s = min(self.best_s, float(best_s))
            self.bound_s = max(self.bound_s, float(bound_s))
            now_s = time.perf_counter()
            due = now_s - self._logged_s >= _LOG_EVERY_S
            if due:
                self._logged_s = now_s
        if due:
            _log.info("%s: %s", self.what, self)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began_s

    @property
    def gap(self) -> float | None:
        """Best / bound - 1; ``None`` where one of the two is not known."""
        if not self.bound_s or math.isinf(self.best_s) or math.isinf(self.bound_s):
            return None
        return max(0.0, self.best_s / self.bound_s - 1.0)

    def __str__(self) -> str:
        words = [f"{self.elapsed_s:.0f} s"]
        if math.isfinite(self.best_s):
            words.append(f"best {format_seconds(self.best_s)}")
        elif self.bound_s:
            words.append("nothing fits yet")
        if self.gap is not None:
            words.append(f"gap {self.gap:.2%}".replace("%", " %"))
        return ", ".join(words)


_current: ContextVar[Progress | None] = ContextVar("schedsim_progress", default=None)
_shown: ContextVar[list[Progress] | None] = ContextVar("schedsim_shown", default=None)


def current() -> Progress:
    """The progress of the running search; outside of any search, one without a listener.

    Call it on the thread on which the planner was called; other threads share the result.
    """
    return _current.get() or Progress("")


@contextmanager
def searching(what: str) -> Iterator[Progress]:
    """Begin a search for `what`; the planners called inside report to it."""
    progress = Progress(what)
    token, shown = _current.set(progress), _shown.get()
    if shown is not None:
        shown.append(progress)
    try:
        yield progress
    finally:
        _current.reset(token)
        if shown is not None:
            shown.remove(progress)


@contextmanager
def watched() -> Iterator[list[Progress]]:
    """The list of running searches, the innermost last, for a display."""
    running: list[Progress] = []
    token = _shown.set(running)
    try:
        yield running
    finally:
        _shown.reset(token)
