"""What CUDA's allocator reserves for steps, seen in steps by plans that have run once before."""

from __future__ import annotations

from typing import Any

import torch

from ...measure.cuda import empty_cache, reserved_bytes

_MOST_LOOKS = 64
_NUM_STEPS = 3
"""Steps of a look: a later step finds the cache as an optimizer and a step have left it."""
_NUM_OVER = 2
"""Looks at a plan that reserves too much: a step in which schedules are compared takes more."""
_FIRST_GLANCE = 4
"""Steps after a look until what is reserved is read again, and twice as many after each time."""


class ReservedLooks:
    """Looks at some successive steps by each plan, the first of them from an emptied cache.

    Later steps are glanced at, ever more rarely: the cache is as they find it.

    Attributes
    ----------
    reserved_bytes
        What steps by the present plan reserve; ``None`` before they were looked at.
    """

    def __init__(self) -> None:
        self.reserved_bytes: int | None = None
        self._plan: tuple[Any, ...] = ()
        self._num_looks = self._num_over = 0
        self._is_settled = False
        self._num_since = 0  # steps since the plan was settled
        # The look: its device, its steps so far, and the most that they have reserved.
        self._device: torch.device | None = None
        self._num_steps = self._most_bytes = 0
        # The step: what was reserved as it began, and as a backward ended; ``None`` out of a look.
        self._begin_bytes: int | None = None
        self._end_bytes = 0

    def begins(self, device: torch.device, *plan: Any) -> None:
        """A step by `plan` begins: look at it, unless it is the first by this plan.

        The first may compare schedules.
        """
        if not _is_same(plan, self._plan):
            self.leaves()
            self._plan, self._num_over, self._num_since = plan, 0, 0
            self._is_settled, self.reserved_bytes = False, None
            return
        if self._is_settled:
            self._num_since += 1
            self._device = device if _is_glanced_at(self._num_since) else None
        if self._device is not None:
            self._begin_bytes, self._end_bytes = reserved_bytes(device), 0
        elif not self._is_settled and self._num_looks < _MOST_LOOKS:
            self._num_looks += 1
            self._device, self._num_steps, self._most_bytes = device, 0, 0
            self._begin_bytes = self._end_bytes = 0
            empty_cache(device)

    def sees(self) -> None:
        """A backward has ended, in a step that is looked at or in another."""
        if self._device is not None and self._begin_bytes is not None:
            self._end_bytes = reserved_bytes(self._device)

    def leaves(self) -> None:
        """What runs is no step of the loop, or not all of one: the look tells nothing."""
        self._device = self._begin_bytes = None

    def ends(self, budget_bytes: int) -> int:
        """The step has ended; by how many bytes its plan exceeds the budget, once that is sure.

        What an optimizer has reserved before a step does not count, unless the step adds to it.
        """
        begin, self._begin_bytes = self._begin_bytes, None
        if self._device is None or begin is None or not self._end_bytes:
            self.leaves()
            return 0
        if self._is_settled:  # a glance
            self.leaves()
            if self._end_bytes <= max(begin, budget_bytes):
                return 0
            self.reserved_bytes = self._end_bytes
            return self._end_bytes - budget_bytes
        if self._end_bytes > begin:
            self._most_bytes = max(self._most_bytes, self._end_bytes)
        self._num_steps += 1
        if self._num_steps < _NUM_STEPS:
            return 0
        self.leaves()
        known, most = self.reserved_bytes, self._most_bytes
        self.reserved_bytes = most if known is None else min(known, most)
        over = max(0, self.reserved_bytes - budget_bytes)
        self._num_over += over > 0
        self._is_settled = not over or self._num_over >= _NUM_OVER
        return over if self._is_settled else 0


def _is_glanced_at(num_since: int) -> bool:
    return num_since >= _FIRST_GLANCE and num_since & (num_since - 1) == 0


def _is_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether both plans are one; dictionaries of schedules are made anew for each plan."""
    rows = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        a is b if isinstance(a, dict) else a == b for a, b in rows
    )
