"""What a search found out on the way to its plan, and what ended it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .effort import EndedBy


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """How a planner came to its plan.

    Attributes
    ----------
    chosen
        The planner whose schedule was taken, where several were tried; empty otherwise.
    num_moves
        Moves of the search; ``None`` where it made none.
    ended_by
        What ended the search: itself, its ``work`` spent, its ``stop`` criterion, the ``clock``, or
        an ``interrupt``; the plan is its best until then.
    bound_by
        How the lower bound was proven; empty for the time of store-all.
    bound_op
        The op that the bound was proven at, where there is one.
    figures
        Further numbers and words of the planner's own, by name.
    """

    chosen: str = ""
    num_moves: int | None = None
    ended_by: EndedBy = "itself"
    bound_by: str = ""
    bound_op: str = ""
    figures: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)

    @property
    def reproducible(self) -> bool:
        """Whether the same call gives the same schedule again, on any machine and day."""
        return self.ended_by in ("itself", "work")

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt ended the search."""
        return self.ended_by == "interrupt"


NO_SEARCH = SearchRecord()
"""Of a planner that computes its plan directly."""
