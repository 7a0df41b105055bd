"""The least budget: what is known about the memory that a workload needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..units import format_bytes
from .scope import ANY_SCHEDULE, Scope


@dataclass(frozen=True, slots=True)
class LeastBudget:
    """Two numbers: a budget at which a schedule was found, and a proven floor.

    Attributes
    ----------
    found_bytes
        The least budget at which the planner, with the options it was given, is known to find a
        schedule; ``None`` where unknown.
    op
        The op that sets `found_bytes`; ``None`` where unknown.
    floor_bytes
        Proven: no schedule of `scope` fits in less.
    scope
        The class of schedules for which `floor_bytes` is proven.
    growing_bytes
        What the schedule of `found_bytes` reserves where the segments of PyTorch's allocator grow,
        if that is clearly less; ``None`` where it is not, or unknown.

    Examples
    --------
    >>> least = LeastBudget(found_bytes=26, op="B1", floor_bytes=26)
    >>> least.proven, least.refutes(25), least.sentence("B1")
    (True, True, 'the proven least budget is 26 B over any schedule, set by B1')
    >>> LeastBudget(found_bytes=26, floor_bytes=20).sentence()
    'the least budget found is 26 B'
    """

    found_bytes: int | None = None
    op: str | None = None
    floor_bytes: int = 0
    scope: Scope = ANY_SCHEDULE
    growing_bytes: int | None = None

    @property
    def proven(self) -> bool:
        """Whether no schedule of `scope` needs less than `found_bytes`."""
        return self.found_bytes is not None and self.found_bytes <= self.floor_bytes

    def sentence(self, set_by: str = "") -> str:
        """The least budget in words: a budget that was only found is never called proven.

        Parameters
        ----------
        set_by
            The op that sets the budget, with its label; empty for none.
        """
        if self.found_bytes is None:
            return "no budget is known that does"
        size, where = format_bytes(self.found_bytes), f", set by {set_by}" if set_by else ""
        if self.proven:
            return f"the proven least budget is {size} over {self.scope}{where}"
        return f"the least budget found is {size}{where}"

    def hint(self, option: str, set_by: str = "") -> str:
        """The least budget in words, and the `option` that asks for it."""
        return f"{self.sentence(set_by)}: {option}{self.growing_hint}"

    @property
    def growing_hint(self) -> str:
        """What growing segments would take, behind the least budget; empty where unknown."""
        if self.growing_bytes is None:
            return ""
        size = format_bytes(self.growing_bytes)
        return f"; about {size} with PYTORCH_ALLOC_CONF=expandable_segments:True"

    def refutes(self, budget_bytes: int) -> bool:
        """Whether it is proven that no schedule of `scope` fits in `budget_bytes`."""
        return budget_bytes < self.floor_bytes


def least_of(leasts: list[LeastBudget], *, peak_bytes: int | None = None) -> LeastBudget:
    """The least budget of one workload, from what several planners know about it.

    The least budget that any of them found, and the highest floor; a floor over a narrower class of
    schedules never replaces one over a wider class.

    Parameters
    ----------
    peak_bytes
        The peak of a schedule that was found; the least budget is at most this.

    Examples
    --------
    >>> least_of([LeastBudget(30, "f"), LeastBudget(26, "b", 26)]).found_bytes
    26
    """
    known = [
        (least.found_bytes, not least.proven, k)
        for k, least in enumerate(leasts)
        if least.found_bytes is not None and (peak_bytes is None or least.found_bytes <= peak_bytes)
    ]
    best = leasts[min(known)[2]] if known else LeastBudget()
    if best.proven:
        return best
    # A floor over a narrower class may lie above a budget found in a wider class.
    floors = [
        (least.floor_bytes, least.scope)
        for least in leasts
        if best.found_bytes is None or least.floor_bytes <= best.found_bytes
    ]
    floor, scope = max(floors, key=lambda pair: pair[0], default=(0, ANY_SCHEDULE))
    return LeastBudget(best.found_bytes, best.op, floor, scope)
