"""What CUDA's allocator reserves for a step, seen in steps by plans that have run once before."""

from __future__ import annotations

from typing import Any

import torch

from ..measure.cuda import empty_cache, reserved_bytes

_MOST_LOOKS = 64
_NUM_LOOKS = 2
"""Looks at a plan that reserves too much: a step in which schedules are compared takes more."""


class ReservedLooks:
    """Looks at some of the steps by each plan, from an emptied cache.

    Attributes
    ----------
    reserved_bytes
        What a step by the present plan reserves; ``None`` before one was looked at.
    """

    def __init__(self) -> None:
        self.reserved_bytes: int | None = None
        self._plan: tuple[Any, ...] = ()
        self._device: torch.device | None = None  # of the step that is looked at
        self._seen_bytes = self._num_looks = self._num_over = 0
        self._is_settled = False

    def begins(self, device: torch.device, *plan: Any) -> None:
        """A step by `plan` begins: look at it, unless it is the first by this plan.

        The first may compare schedules.
        """
        if not _is_same(plan, self._plan):
            self._plan, self._num_over = plan, 0
            self._is_settled, self.reserved_bytes = False, None
        elif not self._is_settled and self._num_looks < _MOST_LOOKS:
            self._num_looks += 1
            self._device, self._seen_bytes = device, 0
            empty_cache(device)

    def sees(self) -> None:
        """A backward has ended, in a step that is looked at or in another."""
        if self._device is not None:
            self._seen_bytes = reserved_bytes(self._device)

    def leaves(self) -> None:
        """What runs is no step of the loop, or not all of one."""
        self._device = None

    def ends(self, budget_bytes: int) -> int:
        """The step has ended; by how many bytes its plan exceeds the budget, once that is sure."""
        device, self._device = self._device, None
        if device is None or not self._seen_bytes:
            return 0
        known = self.reserved_bytes
        self.reserved_bytes = self._seen_bytes if known is None else min(known, self._seen_bytes)
        over = max(0, self.reserved_bytes - budget_bytes)
        self._num_over += over > 0
        self._is_settled = not over or self._num_over >= _NUM_LOOKS
        return over if self._is_settled else 0


def _is_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether both plans are one; dictionaries of schedules are made anew for each plan."""
    rows = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        a is b if isinstance(a, dict) else a == b for a, b in rows
    )
