"""Parts of compiled steps in small groups, where the budget does not fit their large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from schedsim.errors import InfeasibleBudgetError

from .traced_part import TracedPart

T = TypeVar("T")


class SmallGroups:
    """Puts parts in small groups in the place of parts in large ones, which are quicker.

    Ranks decide each for itself: autograd calls the same part on all of them, whose gradients come
    in the order of its large groups, and what gathers or reduces around parts does not see groups.

    Parameters
    ----------
    parts
        Parts seen so far; parts are replaced in this list, so that their numbers stay.
    changed
        Function that is called with the number of each part that was replaced.

    Attributes
    ----------
    num_changes
        How often parts were replaced.
    is_compared
        Whether whoever compares steps with the plain ones has compared one with these groups.
    """

    def __init__(self, parts: list[TracedPart], changed: Callable[[int], None]) -> None:
        self._parts, self._changed = parts, changed
        self._large: dict[int, TracedPart] = {}
        self.num_changes = 0
        self.is_compared = True

    def or_small(self, indices: Iterable[int], plan: Callable[[], T]) -> T:
        """What `plan` finds; where it finds nothing, what it finds with small groups.

        Parameters
        ----------
        indices
            Numbers of the parts that are planned.

        Raises
        ------
        InfeasibleBudgetError
            Nothing fits; of both errors, the one that names less. The parts are left as they were
            for it.
        """
        try:
            return plan()
        except InfeasibleBudgetError as error:
            made = self._make_small(dict.fromkeys(indices))
            if not made:
                raise
            try:
                return plan()
            except InfeasibleBudgetError as other:
                least = _least(other) < _least(error)
                if not least:
                    self._make_large(made)
                raise (other if least else error) from None

    def _make_small(self, indices: Iterable[int]) -> list[int]:
        made = []
        for index in indices:
            large = self._parts[index]
            small = None if index in self._large else large.with_small_groups()
            if small is not None:
                self._large[index], self._parts[index] = large, small
                self._note(index)
                made.append(index)
        return made

    def make_large(self) -> None:
        """Put the parts in large groups again, for a plan to come."""
        self._make_large(list(self._large))

    def _make_large(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._parts[index] = self._large.pop(index)
            self._parts[index].take_back()
            self._note(index)

    def _note(self, index: int) -> None:
        self.num_changes += 1
        self.is_compared = False
        self._changed(index)

    @contextmanager
    def in_large(self) -> Iterator[None]:
        """Around what is asked of the large groups: a share as budget is one of their peak."""
        small = {index: self._parts[index] for index in self._large}
        for index, large in self._large.items():
            large.uses_as(small[index])
            self._parts[index] = large
        try:
            yield
        finally:
            for index, part in small.items():
                self._parts[index] = part


def _least(error: InfeasibleBudgetError) -> float:
    found = error.plan.min_feasible_bytes if error.plan is not None else None
    return float("inf") if found is None else found
