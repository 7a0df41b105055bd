"""Parts of compiled steps in smaller groups, where the budget does not fit their large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from schedsim.errors import InfeasibleBudgetError

from .traced_part import TracedPart

T = TypeVar("T")


class SmallGroups:
    """Puts parts in smaller groups in the place of parts in large ones, which are quicker.

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
        """What `plan` finds; where it finds nothing, what it finds with smaller groups.

        Parameters
        ----------
        indices
            Numbers of the parts that are planned.

        Raises
        ------
        InfeasibleBudgetError
            Nothing fits; of all errors, the one that names least. The parts are left as they were
            for it.
        """
        indices = list(dict.fromkeys(indices))
        try:
            return plan()
        except InfeasibleBudgetError as error:
            least, parts = error.with_traceback(None), self._now(indices)
        try:
            while self._make_smaller(indices):
                try:
                    return plan()
                except InfeasibleBudgetError as error:
                    if _least(error) < _least(least):
                        least, parts = error.with_traceback(None), self._now(indices)
            self._put(parts)
            raise least from None
        finally:
            del least  # in a cycle with this frame, it would hold the frames of the step

    def _now(self, indices: Iterable[int]) -> dict[int, TracedPart]:
        return {index: self._parts[index] for index in indices}

    def _make_smaller(self, indices: Iterable[int]) -> bool:
        """Put each part in the next smaller groups; whether any part has some."""
        found = False
        for index in indices:
            large = self._large.get(index, self._parts[index])
            smaller = large.in_smaller_groups()
            if smaller is not None:
                self._large[index], self._parts[index] = large, smaller
                self._note(index)
                found = True
        return found

    def _put(self, parts: Mapping[int, TracedPart]) -> None:
        """Put `parts`, which stood at these numbers before, there again."""
        for index, part in parts.items():
            if self._parts[index] is not part:
                large = self._large[index]
                large.runs_as(part)
                self._parts[index] = part
                if part is large:
                    del self._large[index]
                self._note(index)

    def make_large(self) -> None:
        """Put the parts in large groups again, for a plan to come."""
        self._put(dict(self._large))

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
