"""Effort: how much work a search may do; the clock is only a watchdog beside it.

Planners look at an `Effort`, never at a clock. Work is counted in steps of the algorithms (moves of
an annealing, merges of a recurrence, nodes of a solver). So the same seed and the same effort give
the same schedule on any machine, under any load and with any number of threads. Only this module
reads seconds: for the watchdog, or for a search that is given a time limit alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from numbers import Real
from typing import Literal

from ..checks.value_checks import MAX_SECONDS, shown
from ..errors import SchedsimError
from ..kernels import compile_clock

EndedBy = Literal["itself", "work", "stop", "clock", "interrupt"]
ENDED_BY: tuple[EndedBy, ...] = ("itself", "work", "stop", "clock", "interrupt")
"""The causes that end a search, the strongest last: the search was done, its work was spent, its
stop criterion held, its time was up, the user interrupted it. The first two end the same search at
the same place every time; the others need not."""

DEFAULT_WORK = 20.0
"""The work of a search by default: about ten seconds of two cores."""

_PATIENCE = 6.0
"""The default watchdog, as a multiple of the seconds that two cores need for the work."""


class _Facts:
    """The clock, the stop criterion and the recorded ends, shared by an effort and its parts."""

    def __init__(self, stop: Callable[[float], bool] | None) -> None:
        self.stop = stop
        self.cancelled = threading.Event()
        self.rank = 0

    def note(self, ended_by: EndedBy) -> None:
        self.rank = max(self.rank, ENDED_BY.index(ended_by))


class Effort:
    """An amount of work, with a watchdog and a stop criterion beside it.

    Parameters
    ----------
    work
        Units of work; a core does about one unit per second. Without `work`, the time limit alone
        ends the search, which is then not reproducible.
    moves
        Moves of all walkers of an annealing together. If given, an annealing ends by its moves, and
        everything else by `work`.
    time_limit_s
        With `work`, a watchdog that ends the search wherever it is; without `work`, the time that
        the search takes. Seconds in which kernels are compiled, the first time on a machine, do not
        count, or the search would have none left.
    stop
        A function of the best step time so far, in seconds (infinite where there is none). The
        search ends when the function returns ``True``.

    Raises
    ------
    SchedsimError
        An amount is negative or not a number, or neither work nor a time limit is given.

    Examples
    --------
    >>> effort = Effort(8.0)
    >>> with effort.part(0.25) as part:
    ...     part.spend(1.5)
    >>> part.left, effort.left, effort.is_over(), effort.ended_by
    (0.5, 6.5, False, 'itself')
    """

    def __init__(
        self,
        work: float | None = None,
        *,
        moves: int | None = None,
        time_limit_s: float | None = None,
        stop: Callable[[float], bool] | None = None,
        _parent: Effort | None = None,
    ) -> None:
        for name, value in (("effort", work), ("moves", moves), ("time_limit_s", time_limit_s)):
            number = isinstance(value, Real) and not isinstance(value, bool)
            if value is not None and not (number and value >= 0):
                raise SchedsimError(
                    f"{name} {shown(value)} is not at least 0", hint="give a number, 0 or more"
                )
            if value is not None and value > MAX_SECONDS:
                raise SchedsimError(
                    f"{name} {shown(value)} is more than any search spends",
                    hint="20 is about ten seconds of two cores",
                )
        if work is None and time_limit_s is None:
            raise SchedsimError("an effort without work or a time limit", hint="Effort(20)")
        self.work = math.inf if work is None else float(work)
        self.moves = moves
        self.spent = 0.0
        self.began_s = compile_clock.without()
        self.until_s = math.inf if time_limit_s is None else self.began_s + time_limit_s
        self._parent = _parent
        self._facts: _Facts = _Facts(stop) if _parent is None else _parent._facts

    @classmethod
    def of(
        cls,
        effort: Effort | float | None,
        time_limit_s: float | None = None,
        *,
        moves: int | None = None,
        default: float = DEFAULT_WORK,
    ) -> Effort:
        """The effort that a planner's options ask for.

        Parameters
        ----------
        effort
            An `Effort`, taken as it is; or units of work, with `time_limit_s` as their watchdog.
        time_limit_s
            Given alone, the seconds that the search takes. Without both, the search spends
            `default`.
        moves
            As in `Effort`. Whatever does not end by moves then spends `default`, or as many units
            of work as `time_limit_s` has seconds, if these are fewer.
        """
        if isinstance(effort, Effort):
            return effort
        if effort is None and time_limit_s is None:
            return cls(
                default, moves=moves, time_limit_s=None if moves else _PATIENCE * default / 2
            )
        if effort is None and moves is not None and time_limit_s is not None:
            # More work than the limit has seconds would let the clock decide how far the bound
            # comes.
            effort = min(default, float(time_limit_s))
        return cls(effort, moves=moves, time_limit_s=time_limit_s)

    @property
    def counted(self) -> bool:
        """Whether work ends the search, and not the clock."""
        return self.work < math.inf

    @property
    def left(self) -> float:
        """Units of work left, or seconds where only the clock ends the search. Never below 0."""
        if self.counted:
            return max(0.0, self.work - self.spent)
        return max(0.0, self.until_s - compile_clock.without())

    @property
    def share(self) -> float:
        """The share of the effort that is spent, from 0 to 1."""
        if self.counted:
            return min(1.0, self.spent / self.work) if self.work else 1.0
        whole_s = self.until_s - self.began_s
        return min(1.0, (compile_clock.without() - self.began_s) / whole_s) if whole_s > 0 else 1.0

    def spend(self, work: float) -> None:
        """Count `work` as done."""
        self.spent += work

    def allows(self, work: float) -> bool:
        """Whether at least `work` is left."""
        if self.is_over():
            return False
        enough = self.left >= work
        if not enough and not self.counted:
            self.note_clock()
        return enough

    def is_over(self, best_s: float = math.inf) -> bool:
        """Whether to stop now; `best_s` is the best step time so far, for the stop criterion."""
        if self.out_of_time():
            return True
        if self.counted and self.spent >= self.work:
            return True
        if self._facts.stop is not None and self._facts.stop(best_s):
            self._facts.note("stop")
            self._facts.cancelled.set()
            return True
        return False

    def out_of_time(self) -> bool:
        """Whether the clock or the user has ended the search, however much work is left.

        Code whose steps are not counted as work asks this, so that only a watchdog can end it.
        """
        if self._facts.cancelled.is_set():
            return True
        if self.until_s < math.inf and compile_clock.without() >= self.until_s:
            self.note_clock()
            return True
        return False

    def part(self, share: float, *, watched: float = 1.0) -> Effort:
        """A share of what is left. As a context manager, the part also spends from the whole.

        Take all parts that run at the same time before any of them runs. The part's watchdog has
        the share `watched` of the time left to the whole's watchdog.
        """
        part = self.take(share * self.left)
        if self.counted and watched < 1.0 and self.watchdog_s is not None:
            part.until_s = compile_clock.without() + watched * self.watchdog_s
        return part

    def take(self, amount: float) -> Effort:
        """A part with `amount` units of work, or seconds where only the clock ends the search."""
        amount = max(0.0, min(amount, self.left))
        part = Effort(amount if self.counted else None, time_limit_s=amount, _parent=self)
        if self.counted:
            part.until_s = self.until_s
        else:
            part.until_s = min(part.until_s, self.until_s)
        return part

    def __enter__(self) -> Effort:
        return self

    def __exit__(self, *_: object) -> None:
        if self._parent is not None:
            self._parent.spend(self.spent)

    @property
    def watchdog_s(self) -> float | None:
        """Time limit for a call that cannot look at the effort while it runs; ``None`` for none."""
        if self.until_s == math.inf:
            return None
        return max(0.0, self.until_s - compile_clock.without())

    def note_clock(self) -> None:
        """Remember that the clock decided something: another run may come out differently."""
        self._facts.note("clock")

    def cancel(self) -> None:
        """End the search and all parts of the effort, because the user wants to stop."""
        self._facts.note("interrupt")
        self._facts.cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether the user or the stop criterion has ended the search."""
        return self._facts.cancelled.is_set()

    @property
    def ended_by(self) -> EndedBy:
        """The reason that ended the search, or would end it now."""
        if self._facts.rank:
            return ENDED_BY[self._facts.rank]
        return "work" if self.counted and self.spent >= self.work * (1 - 1e-9) else "itself"

    def to_options(self) -> dict[str, float | int]:
        """The limits that were given, as the options of a plan record them."""
        given: dict[str, float | int] = {}
        if self.counted:
            given["effort"] = self.work
        if self.moves is not None:
            given["max_moves"] = self.moves
        if self.until_s < math.inf:
            given["time_limit_s"] = round(self.until_s - self.began_s, 6)
        return given
