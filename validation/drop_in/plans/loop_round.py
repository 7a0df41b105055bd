"""Refusals of a loop of several models, put off until each of its steps was seen.

The session of one model knows neither what the steps of the others hold, nor the states that their
optimizers will make. What it names in its first refusal, another model would refuse again. So the
loop goes round once by schedules of little memory: when a kind of step comes again, and all models
were trained meanwhile, what is named has room for all of them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from schedsim.errors import InfeasibleBudgetError

from ..records.step_record import StepKind

_MOST_TURNS = 4
"""Times that a kind of step comes while others wait to be measured, and none is, or models are
awaited: for so long a loop runs on whose steps may exceed the budget, as a line has said."""
_RECENT = 64
"""Steps, of all models, within which one has been trained that is awaited."""


class Planner(Protocol):
    """What plans the steps of one model, as far as a round knows it."""

    def lift(self) -> None:
        """Go on by schedules of little memory, whatever the budget."""

    def lower(self) -> InfeasibleBudgetError | None:
        """Plan within the budget again; the refusal of all kinds of steps, if they do not fit."""

    @property
    def is_measured(self) -> bool:
        """Whether each kind of step that has run was measured."""

    @property
    def num_measured(self) -> int:
        """The number of kinds of steps that were measured."""


class LoopRound:
    """The round that a loop makes after a refusal.

    Attributes
    ----------
    coming : list of Callable[[], bool]
        Tell whether models are to come that have a budget, and no session yet.
    """

    def __init__(self) -> None:
        self.coming: list[Callable[[], bool]] = []
        self._planners: dict[int, weakref.ref[Planner]] = {}
        self._refused: set[int] = set()
        self._lifted: set[int] = set()
        self._told: set[int] = set()
        self._begun: Counter[tuple[int, StepKind]] = Counter()
        self._begun_before: Counter[tuple[int, StepKind]] = Counter()  # the last new measurement
        self._num_measured = 0
        self._trained: set[int] = set()
        self._num_steps = 0
        self._last: dict[int, int] = {}  # step in which each was trained last

    def joins(self, number: int, planner: Planner) -> None:
        """The steps of another model are planned from now on; the round does not hold it."""
        self._planners[number] = weakref.ref(planner)

    def put_off(self, number: int, kind: StepKind | None, others: Iterable[int]) -> bool:
        """Put off the refusal of a step, if other models have a budget; whether that is done.

        Parameters
        ----------
        number
            The number of the model in the process.
        kind
            The kind of its step that has begun; ``None`` where it is not known.
        others
            The numbers of the other models that are there.
        """
        others = self.going_on(others)
        if number in self._told or not (others or self.is_coming()):
            self._told.add(number)
            return False
        if not self.is_on:
            self._begun.clear()
            self._begun_before.clear()
            self._num_measured = 0
            self._trained.clear()
        self._refused.add(number)
        if kind is not None:
            self._begun[number, kind] = max(1, self._begun[number, kind])
        for one in (number, *others):
            self._lift(one)
        return True

    def going_on(self, numbers: Iterable[int]) -> list[int]:
        """Those of these models that were not refused: a loop that was is mostly over."""
        return [it for it in numbers if it not in self._told]

    def refuses(self, number: int) -> None:
        """The refusal of this model is raised at once."""
        self._told.add(number)

    def _lift(self, number: int) -> None:
        planner = self._planner(number)
        if planner is not None and number not in self._lifted:
            self._lifted.add(number)
            planner.lift()

    def _planner(self, number: int) -> Planner | None:
        found = self._planners.get(number)
        return None if found is None else found()

    def trains(self, number: int) -> None:
        """A backward of this model has run."""
        self._trained.add(number)
        self._last[number] = self._num_steps

    def begins(self, number: int, kind: StepKind, members: Iterable[int]) -> None:
        """A step begins, and with it perhaps the second round.

        Parameters
        ----------
        members
            The numbers of all models that are there.

        Raises
        ------
        InfeasibleBudgetError
            The budget is too small for the steps of the first: it names one that is not.
        """
        self._num_steps += 1
        if not self.is_on:
            return
        self._lift(number)
        lifted = [it for one in self._lifted if (it := self._planner(one)) is not None]
        num_measured = sum(it.num_measured for it in lifted)
        if num_measured > self._num_measured:
            self._num_measured, self._begun_before = num_measured, self._begun.copy()
        self._begun[number, kind] += 1
        turns = self._begun[number, kind]
        in_vain = turns - self._begun_before[number, kind]
        waits = self._awaits(members) or not all(it.is_measured for it in lifted)
        if (in_vain >= _MOST_TURNS) if waits else (turns >= 2):
            self.end()

    def end(self) -> None:
        """End the round.

        Raises
        ------
        InfeasibleBudgetError
            As of `begins`.
        """
        lifted = [it for one in sorted(self._lifted) if (it := self._planner(one)) is not None]
        self._told |= self._refused
        self._refused.clear()
        self._lifted.clear()
        found = [it for it in (one.lower() for one in lifted) if it is not None]
        if found:
            found.sort(key=lambda error: error.min_feasible_bytes or 0)
            raise found.pop()  # in no cycle with this frame

    @property
    def is_on(self) -> bool:
        """Whether a refusal waits."""
        return any(self._planner(number) is not None for number in self._refused)

    def _awaits(self, members: Iterable[int]) -> bool:
        """Whether some model was not trained since the round began, and is likely to be."""
        for number in members:
            last = self._last.get(number)
            is_recent = last is None or self._num_steps - last <= _RECENT
            if is_recent and number not in self._trained and number not in self._told:
                return True
        return self.is_coming()

    def is_coming(self) -> bool:
        """Whether models are to come."""
        return any(it() for it in self.coming)


THE_ROUND = LoopRound()
"""That of the process: its memory is what budgets bound."""
