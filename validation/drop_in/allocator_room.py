"""Room in the budget for what CUDA's allocator reserves beyond the bytes that steps request.

A plan bounds requested bytes. Rounding and gaps between blocks come on top, and depend on all that
the loop does. Where a step by a plan was seen to reserve more than the budget, the next plan leaves
that much room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from schedsim.errors import InfeasibleBudgetError
from schedsim.units import format_bytes

from ..guards.plan_variants import PlainStepWarning, ReplannedWarning
from ..measure.cuda import allocator_settings
from .part_sizes import Binding
from .reserved_looks import ReservedLooks
from .step_plans import StepPlans
from .step_record import Key

_MOST_PLANS = 6
"""Plans that are tried, each with more room than the one before."""
_LEAST_SHARE = 2**-8
"""Share of the budget by which the room grows at least."""

T = TypeVar("T")
Tell = Callable[[str, type[UserWarning]], None]
"""Warns of a line."""


class AllocatorRoom:
    """What the plans of a model leave to the allocator of its device.

    A budget that is a share is one of requested bytes, and leaves nothing.

    Parameters
    ----------
    plans
        The plans, which count the room as resident.

    Attributes
    ----------
    room_bytes
        Bytes of the budget that plans leave to the allocator.
    looks : ReservedLooks
        What steps reserve.
    """

    def __init__(self, plans: StepPlans, tell: Tell) -> None:
        self._plans, self._tell = plans, tell
        self.looks = ReservedLooks()
        self.room_bytes = 0
        self._is_closed = self._is_told = False
        self._tried: list[tuple[int, int]] = []  # what each plan has reserved, and its room

    def begins(self, device: torch.device, key: Key, binding: Binding) -> None:
        """A step of the loop begins with a call of these sizes, which no record measures."""
        known = self._plans.known
        if not _has_gaps(device) or self._is_closed or known.is_share:
            return
        if key in known.numbers and binding == known.largest.get(key[0]):
            plan = known.numbers, known.peak_bytes, self._plans.small.num_changes
            self.looks.begins(device, *plan)

    def ends(self, *, is_whole: bool, is_distributed: bool) -> None:
        """A step has ended: plan the next one with more room, if this one has reserved too much.

        Parameters
        ----------
        is_whole
            Whether all its backwards have run, and nothing besides.
        is_distributed
            Whether several ranks run it, which all would have to plan anew.
        """
        known = self._plans.known
        if not is_whole or known.budget_bytes is None:
            self.looks.leaves()
            return
        over = self.looks.ends(known.budget_bytes)
        reserved = self.looks.reserved_bytes
        if reserved is None or not (over or reserved <= known.budget_bytes):
            return
        if not over:
            self._tried = [(reserved, self.room_bytes)]
            return
        what = (
            f"CUDA's allocator reserves {format_bytes(reserved)} for a step, over the budget of "
            f"{format_bytes(known.budget_bytes)}"
        )
        self._tried.append((reserved, self.room_bytes))
        if is_distributed:
            self._is_closed = True
            self._tell(f"{what}: plans of several ranks bound what is requested", PlainStepWarning)
        elif len(self._tried) < _MOST_PLANS:
            self._leave(self.room_bytes + max(over, int(_LEAST_SHARE * known.budget_bytes)))
            if not self._is_told:
                self._is_told = True
                self._tell(f"{what}: later steps are planned with room for it", ReplannedWarning)
        else:
            self._is_closed = True
            self._leave(min(self._tried)[1])
            self._tell(f"{what}, by each plan that was tried: {_remedy()}", PlainStepWarning)

    def beside(self, plan: Callable[[], T]) -> T:
        """What `plan` gives; where nothing fits beside the room, without it.

        Raises
        ------
        InfeasibleBudgetError
            Nothing fits without it either.
        """
        before = self._plans.known.resident_bytes
        try:
            return plan()
        except InfeasibleBudgetError:
            if not self.room_bytes:
                raise
            self._plans.known.resident_bytes = before
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
        known = self._plans.known
        known.resident_bytes += room_bytes - self.room_bytes
        self.room_bytes = room_bytes
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
