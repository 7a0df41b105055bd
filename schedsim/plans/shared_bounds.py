"""The best bound proven by several plans of one workload and budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import OPTIMALITY_TOLERANCE, Plan
from .scope import ANY_SCHEDULE, Scope


@dataclass(frozen=True, slots=True)
class SharedBound:
    """The best bound that plans of one workload and budget have proven.

    Attributes
    ----------
    anyhow_s
        No schedule within the budget is faster.
    bound_s, scope
        No schedule in `scope` is faster than `bound_s`. The scope is the widest class among the
        plans with a better bound than `anyhow_s`, or any schedule.
    """

    anyhow_s: float
    bound_s: float
    scope: Scope

    @classmethod
    def of(cls, plans: Sequence[Plan]) -> SharedBound:
        """From `plans`, infeasible ones included: their bounds hold too."""
        anyhow_s = max((p.lower_bound_s for p in plans if p.bound_scope == ANY_SCHEDULE), default=0)
        better = [plan for plan in plans if plan.lower_bound_s > anyhow_s]
        widest = [
            plan.bound_scope
            for plan in better
            if all(other.bound_scope <= plan.bound_scope for other in better)
        ]
        if not widest:  # no class contains all the others
            return cls(anyhow_s, anyhow_s, ANY_SCHEDULE)
        # A bound over a class holds over the classes within it, not the other way round.
        within_s = max(plan.lower_bound_s for plan in better if plan.bound_scope == widest[0])
        return cls(anyhow_s, within_s, widest[0])

    def gap(self, plan: Plan) -> float | None:
        """makespan / bound - 1; a plan that beats the narrower bound is compared with `anyhow_s`.

        Examples
        --------
        >>> from schedsim import Chain
        >>> from schedsim.algorithms import get_planner
        >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
        ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
        >>> plans = [get_planner(name).load()(chain, 6) for name in ("frontier", "periodic")]
        >>> [round(plan.gap, 3) for plan in plans], [SharedBound.of(plans).gap(p) for p in plans]
        ([0.0, 0.25], [0.0, 0.0])
        """
        if plan.makespan_s is None or plan.gap is None:
            return None
        bound_s = max(self.bound_s, plan.lower_bound_s)
        if plan.makespan_s < bound_s * (1 - OPTIMALITY_TOLERANCE):
            bound_s = max(self.anyhow_s, plan.lower_bound_s)
        gap = plan.makespan_s / bound_s - 1.0 if bound_s else 0.0
        return 0.0 if gap < OPTIMALITY_TOLERANCE else min(gap, plan.gap)
