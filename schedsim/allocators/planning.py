"""Plans whose budget bounds what the allocator reserves, not only what tensors need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dataflow.variants import resolve
from ..plans.offloading import replay
from ..plans.plan import OPTIMALITY_TOLERANCE, Plan
from . import allocate, check_allocator

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph

NUM_STEPS = 2
"""Steps that are measured: the second runs on what the first has left in the cache."""

# Inner budgets closer than this share of the budget are not told apart.
_RESOLUTION = 0.005


def plan_reserved(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: Callable[[int], Plan],
    allocator: str = "cuda-caching",
    *,
    max_plans: int | None = None,
    spare_waits: bool = False,
    **options: Any,
) -> Plan:
    """The fastest plan found whose reserved bytes are within `budget_bytes`.

    `planner` is asked for a plan within an inner budget, at first the budget itself. It is played,
    two steps of it, on a device of `budget_bytes`; where memory runs out, the inner budget is
    lowered until it does not, then raised again by halving, as far as it goes. A device that is
    full returns what is cached and unused, and waits for that: of plans equally fast, the one that
    does so least is taken, and the plan says how often. With `spare_waits` only plans that never do
    are taken.

    Parameters
    ----------
    planner
        Inner budget in bytes -> plan.
    spare_waits
        Whether reserved bytes must be within the budget without anything returned to the device.
    max_plans
        How often to plan: 12 times for a chain by default, 4 for a graph, whose planners take their
        time limit each time.
    **options
        Of `schedsim.allocate`.

    Returns
    -------
    Plan
        Its options hold the allocator, `reserved_bytes`, `inner_budget_bytes` and `num_emptied`.
        The lower bound is that of the budget itself: what needs more live bytes reserves more too.

    Notes
    -----
    Reserved bytes do not grow steadily with the inner budget, so that a faster plan may exist
    between those tried; the gap to the bound says how much faster at the most.
    """
    check_allocator(allocator)
    if max_plans is None:
        max_plans = 12 if workload.kind == "chain" else 4
    started = time.perf_counter()
    first = planner(budget_bytes)
    best: _Measured | None = None
    least = None
    inner, low, high = budget_bytes, 0, budget_bytes
    plan = first
    for _ in range(max_plans):
        if plan.feasible:
            found = _measure(workload, plan, inner, budget_bytes, allocator, options)
            least = found.reserved_bytes if least is None else min(least, found.reserved_bytes)
            if found.fits and not (spare_waits and found.num_emptied):
                if best is None or found.rank < best.rank:
                    best = found
                low = inner
                if inner == budget_bytes:
                    break
            else:
                assert plan.peak_bytes is not None
                high = min(high, inner, plan.peak_bytes)
            if low:
                inner = (low + high) // 2
            else:
                # As if the share that the allocator adds stayed the same.
                inner = min(inner * budget_bytes // found.reserved_bytes, high - 1)
        else:
            floor = plan.min_feasible_bytes
            low = max(low, floor or inner)
            if best is not None or floor is None or floor >= high:
                break
            inner = floor  # the least memory: once, before giving up
            high = floor + 1
        if high - low <= _RESOLUTION * budget_bytes and low:
            break
        plan = planner(inner)
    chosen = best
    if chosen is None:
        return replace(
            first,
            status="infeasible",
            options={**first.options, **_words(allocator, options)},
            peak_bytes=None,
            makespan_s=None,
            overhead=None,
            gap=None,
            schedule=None,
            min_feasible_bytes=least or first.min_feasible_bytes,
            binding_op=None if first.feasible else first.binding_op,
            planning_s=time.perf_counter() - started,
        )
    return _finished(chosen, first, allocator, options, started)


@dataclass(frozen=True)
class _Measured:
    """A plan, and what is reserved for it: on a device without limit, and on that of the budget."""

    plan: Plan
    inner: int
    makespan_s: float
    reserved_bytes: int
    within_bytes: int
    fits: bool
    num_emptied: int

    @property
    def rank(self) -> tuple[float, int]:
        """The lower the better."""
        return (self.makespan_s, self.num_emptied)


def _measure(
    workload: Chain | Graph,
    plan: Plan,
    inner: int,
    budget_bytes: int,
    allocator: str,
    options: Mapping[str, Any],
) -> _Measured:
    # Runs that wait for memory wait for that of the whole budget, as when the plan is replayed.
    plan = replace(plan, budget_bytes=budget_bytes)
    simulation = replay(resolve(workload, plan.variants), plan)
    plan = replace(
        plan,
        peak_bytes=simulation.peak_bytes,
        makespan_s=simulation.makespan_s,
        overhead=simulation.makespan_s / plan.store_all_s - 1.0 if plan.store_all_s else 0.0,
    )
    given = dict(options, num_steps=NUM_STEPS)
    free = tight = allocate(simulation, allocator, **given)
    if free.peak_reserved_bytes > budget_bytes:
        tight = allocate(simulation, allocator, capacity_bytes=budget_bytes, **given)
    return _Measured(
        plan,
        inner,
        simulation.makespan_s,
        free.peak_reserved_bytes,
        tight.peak_reserved_bytes,
        tight.fits,
        tight.num_emptied,
    )


def _finished(
    chosen: _Measured,
    first: Plan,
    allocator: str,
    options: Mapping[str, Any],
    started: float,
) -> Plan:
    """The chosen plan, for the budget that was asked for."""
    bound = min(first.lower_bound_s, chosen.makespan_s)
    met = chosen.makespan_s <= bound * (1 + OPTIMALITY_TOLERANCE)
    return replace(
        chosen.plan,
        options={
            **chosen.plan.options,
            **_words(allocator, options),
            "reserved_bytes": chosen.within_bytes,
            "inner_budget_bytes": chosen.inner,
            "num_emptied": chosen.num_emptied,
        },
        status="optimal" if met else "feasible",
        lower_bound_s=bound,
        bound_scope=first.bound_scope,
        gap=max(0.0, chosen.makespan_s / bound - 1.0) if bound else 0.0,
        min_feasible_bytes=None,
        binding_op=None,
        planning_s=time.perf_counter() - started,
    )


def _words(allocator: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"allocator": allocator, **({"allocator_options": dict(options)} if options else {})}
