"""Memory/time curves: their points, the bound beside them, and the knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..dataflow.shown_in_notebooks import ShownInNotebooks
from ..simulation.schedule import Schedule
from ..units import format_bytes
from .effort import EndedBy


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A point of a memory/time curve: the time that a budget allows.

    Attributes
    ----------
    budget_bytes
        The simulated peak of the point's schedule, static bytes included.
    makespan_s, overhead
        Time of the step; makespan / store-all makespan - 1.
    lower_bound_s
        No schedule of the curve's `scope` within `budget_bytes` is faster.
    exact
        Whether the makespan meets that bound.
    schedule
        ``None`` where the curve has no schedules; plan at the point's budget to get one.
    """

    budget_bytes: int
    makespan_s: float
    overhead: float
    lower_bound_s: float
    exact: bool
    schedule: Schedule | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class BoundPoint:
    """A step of a bound: within `budget_bytes`, no schedule takes less than `lower_bound_s`."""

    budget_bytes: int
    lower_bound_s: float
    overhead: float


@dataclass(frozen=True)
class ParetoCurve(ShownInNotebooks):
    """The points of a memory/time curve by ascending budget, each faster than the point before.

    Attributes
    ----------
    planner
        The planner that found the curve.
    scope
        The class of schedules over which the curve, and every bound in it, holds.
    exact
        Whether the curve is proven exact: no point can be better, and no point is missing.
    store_all_s
        Time of the step that recomputes nothing, in seconds.
    bounds
        The bound as a staircase by ascending budget; empty for an exact curve, which is its own
        bound.
    least_memory_bytes
        No schedule in `scope` needs less memory; ``None`` where unknown.
    ended_by
        What ended the search for the curve; see `schedsim.plans.search.SearchRecord`.
    """

    workload_name: str
    planner: str
    scope: str
    exact: bool
    points: tuple[ParetoPoint, ...]
    planning_s: float
    store_all_s: float
    bounds: tuple[BoundPoint, ...] = ()
    least_memory_bytes: int | None = None
    ended_by: EndedBy = "itself"
    seed: int | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the user cut the search short."""
        return self.ended_by == "interrupt"

    @property
    def reproducible(self) -> bool:
        """Whether the same search gives the same curve every time."""
        return self.ended_by in ("itself", "work")

    @cached_property
    def knee(self) -> ParetoPoint | None:
        """The point where more memory stops paying off; ``None`` where the curve has none.

        See `find_knee` for the definition.
        """
        index = find_knee(
            [point.budget_bytes for point in self.points],
            [point.makespan_s for point in self.points],
        )
        return None if index is None else self.points[index]

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON takes it, schema ``schedsim.curve/1``; schedules are left out."""
        knee = self.knee
        return {
            "schema": "schedsim.curve/1",
            "workload": self.workload_name,
            "planner": self.planner,
            "scope": self.scope,
            "exact": self.exact,
            "interrupted": self.interrupted,
            "ended_by": self.ended_by,
            "seed": self.seed,
            "planning_s": self.planning_s,
            "store_all_s": self.store_all_s,
            "least_memory_bytes": self.least_memory_bytes,
            "knee_budget_bytes": None if knee is None else knee.budget_bytes,
            "points": [
                {
                    "budget_bytes": point.budget_bytes,
                    "makespan_s": point.makespan_s,
                    "overhead": point.overhead,
                    "lower_bound_s": point.lower_bound_s,
                    "exact": point.exact,
                }
                for point in self.points
            ],
            "bounds": [
                {
                    "budget_bytes": step.budget_bytes,
                    "lower_bound_s": step.lower_bound_s,
                    "overhead": step.overhead,
                }
                for step in self.bounds
            ],
        }

    def __str__(self) -> str:
        kind = "exact" if self.exact else "found"
        what = "break points" if self.exact else "points"
        lines = [f"{self.workload_name}: {len(self.points)} {what} ({kind}, {self.scope})"]
        for point in self.points:
            line = f"  {format_bytes(point.budget_bytes):<28}{point.overhead:+10.2%}"
            if self.bounds:
                least = point.lower_bound_s / self.store_all_s - 1 if self.store_all_s else 0.0
                line += "  optimal" if point.exact else f"  at least {least:+.2%}"
            lines.append(line + ("  knee" if point is self.knee else ""))
        return "\n".join(lines)


def find_knee(budget_bytes: Sequence[float], makespan_s: Sequence[float]) -> int | None:
    """The index of the knee of a falling curve: where more memory stops paying off.

    Budgets and times are scaled to run from 0 to 1 between the two ends of the curve. The knee is
    the point furthest below the chord, the straight line between the ends; among equals, the point
    with the least budget. The knee depends on where the curve ends: cut off the steep part, and the
    knee moves.

    Parameters
    ----------
    budget_bytes, makespan_s : (num_points,)
        By ascending budget, times falling.

    Returns
    -------
    int or None
        ``None`` where no point lies below the chord, as with fewer than three.

    Notes
    -----
    O(num_points). This is the offline knee of Satopaa et al. 2011 ("Kneedle", ICDCSW, section III):
    the maximum of its difference curve, without smoothing and without a sensitivity.

    Examples
    --------
    >>> find_knee([10, 12, 20, 30], [9.0, 3.0, 2.0, 1.0])
    1
    """
    if len(budget_bytes) < 3:
        return None
    width = budget_bytes[-1] - budget_bytes[0]
    height = makespan_s[0] - makespan_s[-1]
    if width <= 0 or height <= 0:
        return None
    below = [
        1.0 - (b - budget_bytes[0]) / width - (t - makespan_s[-1]) / height
        for b, t in zip(budget_bytes, makespan_s, strict=True)
    ]
    index = max(range(len(below)), key=lambda i: below[i])
    return index if below[index] > 1e-12 else None
