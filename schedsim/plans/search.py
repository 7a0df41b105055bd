"""The record of a search: what it found out besides its plan, and what ended it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .effort import EndedBy


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """How a planner found its plan.

    Attributes
    ----------
    chosen
        The planner whose schedule was taken, where several were tried; empty otherwise.
    num_moves
        Moves of the search; ``None`` where it made none.
    ended_by
        What ended the search: ``itself``, its spent ``work``, its ``stop`` criterion, the
        ``clock``, or an ``interrupt``. The plan is the best one until then.
    bound_by
        The method that proved the lower bound; empty for the time of store-all.
    bound_op
        The op at which the bound was proven, where there is one.
    figures
        Further numbers and words of this planner, by name.
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
"""The record of a planner that computes its plan directly."""
