"""Which schedules of a part may run: those that were seen to give the same step as another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

from .part_sizes import Binding

_NUM_SIZES = 2
"""Sizes at which a schedule is compared, where so many come."""
_MOST_AVOIDED = 8
"""Steps of new sizes that run by a slower schedule, so as not to wait for a comparison."""

Compare = Callable[[int, int], str | None]
"""Gives the difference between two schedules, by their numbers."""


class ScheduleTrust:
    """Which schedules of a part may run, and which of them were seen to equal another.

    A schedule is compared before it runs for the first time. It is compared at a second size, too,
    because formulas for sizes may be right at one size only; but never in a step whose sizes come
    for the first time, which is not to wait. Schedules that are made for sizes to come are
    compared ahead, in steps of other sizes: the code is the same, and the numbers that it gets for
    sizes are those that every schedule gets.

    Attributes
    ----------
    num_compared
        Number of comparisons of two schedules.
    refused
        Refused schedule -> the schedule that runs instead.
    compared_at
        Sizes at which schedules were compared, with each other or with the plain step.
    """

    def __init__(self) -> None:
        self.num_compared = 0
        self.refused: dict[int, int] = {}
        self.compared_at: list[Binding] = []
        self._seen: dict[int, set[Binding]] = {}
        self._agreed: dict[int, set[Binding]] = {}  # sizes at which it equalled another new one
        self._ran: dict[int, set[Binding]] = {}  # sizes at which it ran, and was not compared
        self._met: set[Binding] = set()
        self._now: list[int] = []
        self._later: list[int] = []
        self._num_avoided: Counter[int] = Counter()

    # -- sizes ------------------------------------------------------------------------------------

    def meet(self, binding: Binding) -> None:
        """A step of these sizes has come."""
        self._met.add(binding)

    def has_met(self, binding: Binding) -> bool:
        """Whether sizes have come before."""
        return binding in self._met

    # -- what was compared ------------------------------------------------------------------------

    def trust(self, number: int, binding: Binding) -> None:
        """Trust `number` at these sizes, because its step was compared in another way."""
        self._seen.setdefault(number, set()).add(binding)
        self._note(binding)

    def _note(self, binding: Binding) -> None:
        if binding not in self.compared_at:
            self.compared_at.append(binding)

    def _sizes(self, number: int) -> set[Binding]:
        return self._seen.get(number, set()) | self._agreed.get(number, set())

    def is_compared(self, number: int) -> bool:
        """Whether `number` was compared at some sizes."""
        return bool(self._sizes(number))

    def is_new(self, number: int, binding: Binding) -> bool:
        """Whether `number` must be compared before it runs at these sizes."""
        seen = self._sizes(number)
        if not seen:
            return True
        return len(seen) < _NUM_SIZES and binding not in seen and self.has_met(binding)

    def avoids(self, number: int, binding: Binding) -> bool:
        """Whether a step of these sizes runs by another schedule that was compared, if one fits.

        Sizes that come for the first time do not wait for a comparison; but where no sizes come
        twice, some step has to.
        """
        if self.is_compared(number) or self.has_met(binding):
            return False
        self._num_avoided[number] += 1
        return self._num_avoided[number] <= _MOST_AVOIDED

    def runs(self, number: int, binding: Binding) -> None:
        """Note that `number` runs at these sizes."""
        if binding not in self._sizes(number):
            self._ran.setdefault(number, set()).add(binding)

    @property
    def num_sizes_uncompared(self) -> int:
        """Number of sizes at which schedules ran that were compared at other sizes alone."""
        rows = (sizes - self._sizes(number) for number, sizes in self._ran.items())
        return len(set().union(*rows))

    # -- ahead ------------------------------------------------------------------------------------

    def expect(self, number: int, *, now: bool) -> None:
        """Compare `number` before it is needed: in the step that made it, `now`, or in a later one.

        That is one whose sizes have come before.
        """
        if not self._sizes(number) and number not in self._now + self._later:
            (self._now if now else self._later).append(number)

    @property
    def expects(self) -> bool:
        """Whether some schedule is to be compared ahead of need."""
        return bool(self._now or self._later)

    def may_compare(self, binding: Binding) -> bool:
        """Whether a step of these sizes may compare some ahead, if they fit."""
        if not self._now and not self.has_met(binding):
            return False
        return any(binding not in self._sizes(it) for it in (*self._now, *self._later))

    def expected(self, binding: Binding, fitting: Container[int]) -> list[int]:
        """The schedules to compare in a step of these sizes, among those `fitting`, ahead of need.

        In a step that made none, one at most.
        """
        self._later = self._now + self._later
        now, self._now = self._now, []
        if not now and not self.has_met(binding):
            return []
        self._later = [
            number
            for number in self._later
            if number not in self.refused and len(self._sizes(number)) < _NUM_SIZES
        ]
        new = (it for it in self._later if binding not in self._sizes(it) and it in fitting)
        found = sorted(new, key=lambda it: len(self._sizes(it)))
        return [it for it in found if it in now] or found[:1]

    # -- comparing --------------------------------------------------------------------------------

    def settle(
        self, number: int, binding: Binding, others: list[int], compare: Compare
    ) -> tuple[int, str | None]:
        """The schedule to run, and what was wrong with `number`, if anything.

        Parameters
        ----------
        others
            Schedules that fit at these sizes.

        Notes
        -----
        A schedule that is already trusted decides over one that is not. If no trusted schedule
        fits, a new one is compared with another new one. Two that agree run, and are not compared
        again at these sizes, without being trusted to decide over others; of two that differ
        neither runs, and the trusted one runs, even if it takes more memory.
        """
        others = [one for one in others if one != number and one not in self.refused]
        trusted = [one for one in others if one in self._seen]
        if number in self._seen:
            others = trusted
        if not others:
            return number, None
        other = (trusted or others)[0]
        self.num_compared += 1
        wrong = compare(number, other)
        if wrong is None:
            self._note(binding)
            if trusted:
                self.trust(number, binding)
                self.trust(other, binding)
            else:
                for one in (number, other):
                    self._agreed.setdefault(one, set()).add(binding)
            return number, None
        if not trusted:
            other = next((one for one in self._seen if one not in self.refused), other)
        self.refused[number] = other
        ran = len(self._ran.pop(number, ()))
        if ran:
            wrong += f" (steps of {ran} sizes ran by it, which was compared at other sizes alone)"
        return other, wrong
