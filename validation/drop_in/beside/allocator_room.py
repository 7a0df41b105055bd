"""Room in the budget for what CUDA's allocator reserves beyond the bytes that steps request.

A plan bounds requested bytes. Rounding and gaps between blocks come on top, and depend on all that
the loop does. Where a step by a plan was seen to reserve more than the budget, the next plan leaves
that much room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from schedsim.errors import InfeasibleBudgetError
from schedsim.units import format_bytes

from ...guards.plan_variants import PlainStepWarning, ReplannedWarning
from ...measure.cuda import allocator_settings
from .reserved_looks import ReservedLooks

_MOST_PLANS = 6
"""Plans that are tried, each with more room than the one before."""
_LEAST_SHARE = 2**-8
"""Share of the budget by which the room changes at least."""
_MOST_SPARE = 2**-5
"""Share of the budget that steps leave unused before a plan with less room is tried."""
_MOST_SMALLER = 3
"""Plans with less room that are tried."""

T = TypeVar("T")
Tell = Callable[[str, type[UserWarning]], None]
"""Warns of a line."""


class PlansBesideRoom(Protocol):
    """Plans that count the room as resident.

    Attributes
    ----------
    budget_bytes
        The budget in bytes; ``None`` before a step was planned.
    is_share
        Whether the budget was given as a share.
    peak_bytes
        The predicted peak, with the room.
    room_bytes
        Bytes of the budget that plans leave to the allocator.
    present
        What tells the present plan from others.
    """

    room_bytes: int

    @property
    def budget_bytes(self) -> int | None: ...

    @property
    def peak_bytes(self) -> int | None: ...

    @property
    def is_share(self) -> bool: ...

    @property
    def present(self) -> tuple[Any, ...]: ...

    def plan_anew(self) -> None:
        """Plan when the next step begins."""


class AllocatorRoom:
    """What the plans of a model leave to the allocator of its device.

    A budget that is a share is one of requested bytes, and leaves nothing. Of several ranks, each
    leaves room of its own: by any schedules they communicate in one order.

    Attributes
    ----------
    looks : ReservedLooks
        What steps reserve.
    """

    def __init__(self, plans: PlansBesideRoom, tell: Tell) -> None:
        self._plans, self._tell = plans, tell
        self.looks = ReservedLooks()
        self._is_closed = self._is_told = False
        self._tried: list[tuple[int, int]] = []  # what each plan has reserved, and its room
        self._too_small = 0  # the largest room for which a plan has reserved too much
        self._enough: int | None = None  # the room that sufficed, while a smaller one is tried
        self._num_smaller = 0

    @property
    def room_bytes(self) -> int:
        """Bytes of the budget that plans leave to the allocator."""
        return self._plans.room_bytes

    def begins(self, device: torch.device) -> None:
        """A step of the loop begins by the present plan, which no record measures."""
        if _has_gaps(device) and not self._is_closed and not self._plans.is_share:
            self.looks.begins(device, *self._plans.present)

    def ends(self, *, is_whole: bool) -> None:
        """A step has ended: plan the next one with more room, if this one has reserved too much.

        Parameters
        ----------
        is_whole
            Whether all its backwards have run, and nothing besides.
        """
        budget = self._plans.budget_bytes
        if not is_whole or budget is None:
            self.looks.leaves()
            return
        over = self.looks.ends(budget)
        reserved = self.looks.reserved_bytes
        if reserved is None or not (over or reserved <= budget):
            return
        if not over:
            self._tried = [(reserved, self.room_bytes)]
            self._try_less(budget, reserved)
            return
        # The present plan would do for a larger room, too.
        self._too_small = self.room_bytes + max(0, budget - (self._plans.peak_bytes or budget))
        if self._enough is not None:
            enough, self._enough = self._enough, None
            self._leave(enough)
            return
        what = (
            f"CUDA's allocator reserves {format_bytes(reserved)} for a step, over the budget of "
            f"{format_bytes(budget)}"
        )
        self._tried.append((reserved, self.room_bytes))
        if len(self._tried) < _MOST_PLANS:
            self._leave(self._too_small + max(over, int(_LEAST_SHARE * budget)))
            if not self._is_told:
                self._is_told = True
                self._tell(f"{what}: later steps are planned with room for it", ReplannedWarning)
        else:
            self._is_closed = True
            self._leave(min(self._tried)[1])
            self._tell(f"{what}, by each plan that was tried: {_remedy()}", PlainStepWarning)

    def _try_less(self, budget_bytes: int, reserved_bytes: int) -> None:
        """Plan the next step with less room, where much of the budget is left unused.

        Gaps change by leaps from plan to plan, so that a room may be larger than need be.
        """
        self._enough = None
        spare = budget_bytes - reserved_bytes
        between = (self._too_small + self.room_bytes) // 2
        room = max(between, self.room_bytes - spare)
        is_worth_it = self.room_bytes - room >= _LEAST_SHARE * budget_bytes
        if spare > _MOST_SPARE * budget_bytes and is_worth_it and self._num_smaller < _MOST_SMALLER:
            self._num_smaller += 1
            self._enough = self.room_bytes
            self._leave(room)

    def beside(self, plan: Callable[[], T]) -> T:
        """What `plan` gives; where nothing fits beside the room, without it.

        Raises
        ------
        InfeasibleBudgetError
            Nothing fits without it either.
        """
        try:
            return plan()
        except InfeasibleBudgetError:
            if not self.room_bytes:
                raise
            self._is_closed = True
            self._leave(self._fallback())
            self._tell(
                "no plan fits the budget beside what CUDA's allocator reserves: steps reserve more "
                f"than the budget; {_remedy()}",
                PlainStepWarning,
            )
            return self.beside(plan)

    def _fallback(self) -> int:
        """The largest room below the present one that a plan has fitted beside."""
        return max((room for _, room in self._tried if room < self.room_bytes), default=0)

    def _leave(self, room_bytes: int) -> None:
        """Plan anew with so much room, when the next step begins."""
        self._plans.room_bytes = room_bytes
        self._plans.plan_anew()

    def report(self) -> list[str]:
        """Lines for people."""
        lines = []
        if self.room_bytes:
            lines.append(f"  allocator      {format_bytes(self.room_bytes)} are left to it")
        if self.looks.reserved_bytes is not None:
            lines.append(f"  reserved       {format_bytes(self.looks.reserved_bytes)} by a step")
        return lines


def _has_gaps(device: torch.device) -> bool:
    """Whether the allocator of `device` reserves memory ahead of requests."""
    return device.type == "cuda"


def _remedy() -> str:
    """What reserves less, in words."""
    if allocator_settings().get("expandable_segments"):
        return "a larger budget, or a smaller batch"
    return "PYTORCH_ALLOC_CONF=expandable_segments:True leaves smaller gaps"
