"""Plans whose budget bounds the bytes that the allocator reserves, not only those of tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..dataflow.graph import Graph
from ..errors import InvalidScheduleError
from ..plans.least_budget import LeastBudget
from ..plans.plan import OPTIMALITY_TOLERANCE, Plan
from ..plans.setting import AllocatorChoice
from ..simulation.schedule import Schedule
from . import check_allocator, play, requests_of_steps
from .fewer_repeats import fewer_repeats
from .swapped_repeats import swapped_repeats
from .weightless_results import ActivationPlanner

if TYPE_CHECKING:
    from ..dataflow.chain import Chain

NUM_STEPS = 2
"""Number of steps played: the second step runs with the cache that the first one left."""

RECORDED_STEPS = 3
"""Number of recorded steps played, as the first may lack the optimizer's state."""

_LEAST_PROBES, _PROBES = 12, 64
"""How many plans within larger inner budgets are tried for a recorded chain, fastest first."""

_NEAR = (0.01, 0.02, 0.04, 0.08)
"""As shares of the budget, how far above the best inner budget those of a recorded graph lie."""

_FIRST_STEP = 0.02
"""Least step down from an inner budget whose plan reserves too much, as a share of the budget."""

_SHARES, _HALVINGS = 6, 2
"""How many budgets for activations are tried, and how often one between the best and the next."""

_FULL = 0.99
"""A plan that reserves this share of its budget is left as it is."""

_LEAST_TRIES, _MOST_TRIES = 40, 2000
"""How many schedules with fewer, or with other, repeated runs are tried."""

_MOST_PLAYED = 10_000_000
"""How many requests and releases of a step these tries play, beyond the least number of tries."""

# Inner budgets closer than this share of the budget count as equal.
_RESOLUTION = 0.005
# Growing segments are worth naming where they reserve at most this share of the least budget.
_WORTH = 0.97
# How often the plan of least memory is measured, each time at the budget that it needs.
_MOST_MEASURED = 4


def measured_steps(workload: Chain | Graph) -> int:
    """How many steps are played to say what is reserved for `workload`."""
    return RECORDED_STEPS if workload.recorded is not None else NUM_STEPS


def plan_reserved(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: Callable[[Any, int], Plan],
    allocator: str = "cuda-caching",
    *,
    max_plans: int | None = None,
    spare_waits: bool | None = None,
    any_plan: bool = False,
    **options: Any,
) -> Plan:
    """The fastest plan found whose reserved bytes are within `budget_bytes`.

    `planner` plans within an inner budget, at first the budget itself. Two steps of that plan are
    played on a device of `budget_bytes`. While the device runs out of memory, the inner budget is
    lowered; then bisection raises it again as far as plans still fit. A full device returns cached,
    unused memory to the driver, and the step waits for that. Among equally fast plans, the plan
    with the fewest such waits is chosen, and it says how many waits there are. With `spare_waits`,
    only plans without waits are accepted.

    For a step recorded on a device, three steps are played, and plans without such waits are
    preferred: a device with more room than the budget returns nothing, and reserves more.

    Parameters
    ----------
    planner
        A workload, the inner budget in bytes -> plan. The workload is `workload`, or, where none of
        its plans fits and it is a recorded graph, that graph without the bytes of its results.
    spare_waits
        Whether reserved bytes must stay within the budget without returning memory to the device.
        The default for a recorded step is to do so if there is such a plan.
    max_plans
        How often to plan: 12 times for a chain by default, 4 for a graph, whose planners take their
        time limit each time, 8 for one whose requests were recorded.
    any_plan
        Whether the first plan that fits is enough, fast or not, to know that there is one.
    **options
        Of `schedsim.allocate`.

    Returns
    -------
    Plan
        Its setting holds the allocator, with the bytes reserved and the inner budget. The lower
        bound is the bound at the budget itself, because reserved bytes are never below live bytes.

    Notes
    -----
    Reserved bytes do not grow monotonically with the inner budget, so a faster plan may exist
    between the inner budgets that were tried; the gap to the bound limits how much faster.
    """
    check_allocator(allocator)
    if max_plans is None:
        max_plans = 12 if workload.kind == "chain" else 4 if workload.recorded is None else 8
    started = time.perf_counter()
    made: dict[int, Plan] = {}

    def remembered(inner_bytes: int) -> Plan:
        if inner_bytes not in made:
            made[inner_bytes] = planner(workload, inner_bytes)
        return made[inner_bytes]

    recorded = workload.recorded is not None

    @cache
    def activations() -> ActivationPlanner | None:
        if not (recorded and isinstance(workload, Graph)):
            return None
        return ActivationPlanner.of(workload, planner)

    given = (workload, budget_bytes, remembered, allocator, options, any_plan)
    search = _WithinReserved(*given, activations)
    chosen = None
    for spares in (True, False) if spare_waits is None and recorded else (bool(spare_waits),):
        chosen, least = search.best(max_plans, spares)
        if chosen is not None:
            return _finished(chosen, remembered(budget_bytes), allocator, options, started)
    first = remembered(budget_bytes)
    return replace(
        first,
        status="infeasible",
        setting=replace(first.setting, allocator=AllocatorChoice(allocator, dict(options))),
        peak_bytes=None,
        makespan_s=None,
        overhead=None,
        gap=None,
        schedule=None,
        least=least,
        planning_s=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _WithinReserved:
    """The search for an inner budget whose plan fits; see `plan_reserved`."""

    workload: Chain | Graph
    budget_bytes: int
    planner: Callable[[int], Plan]
    allocator: str
    options: Mapping[str, Any]
    any_plan: bool
    activations: Callable[[], ActivationPlanner | None]
    known: dict[int, _AllocatedPlan] = field(default_factory=dict)
    by_activations: dict[int, _AllocatedPlan | None] = field(default_factory=dict)

    def measured(self, plan: Plan, inner: int) -> _AllocatedPlan:
        """The plan for the inner budget `inner`, measured once."""
        if inner not in self.known:
            self.known[inner] = self.played(plan, inner)
        return self.known[inner]

    def played(self, plan: Plan, inner: int) -> _AllocatedPlan:
        return _measure(self.workload, plan, inner, self.budget_bytes, self.allocator, self.options)

    def best(self, max_plans: int, spare_waits: bool) -> tuple[_AllocatedPlan | None, LeastBudget]:
        """The best plan found within `max_plans` tries; or the least budget that fits one."""
        budget_bytes, planner = self.budget_bytes, self.planner
        best: _AllocatedPlan | None = None
        inner, low, high = budget_bytes, 0, budget_bytes
        step = _FIRST_STEP * budget_bytes
        plan = first = planner(budget_bytes)
        for left in reversed(range(max_plans)):
            if plan.feasible:
                found = self.measured(plan, inner)
                if found.fits and not (spare_waits and found.num_emptied):
                    if best is None or found.rank < best.rank:
                        best = found
                    low = inner
                    if inner == budget_bytes or self.any_plan:
                        break
                else:
                    assert plan.peak_bytes is not None
                    high = min(high, inner, plan.peak_bytes)
                if low:
                    inner = (low + high) // 2
                else:
                    # Assumes that the allocator adds the same share again; where that is little,
                    # steps grow, as what is reserved may stay just above the budget for long.
                    inner = min(inner * budget_bytes // found.reserved_bytes, high - int(step) - 1)
                    step *= 2
            else:
                floor = plan.min_feasible_bytes
                low = max(low, floor or inner)
                if best is not None or floor is None or floor >= high:
                    break
                inner = floor  # try the least memory once before giving up
            if not left or (high - low <= _RESOLUTION * budget_bytes and low):
                break
            plan = planner(inner)
        if best is None and self.workload.recorded is not None:
            best = self.first_that_fits(first, spare_waits)
        if best is None and (first.feasible or not self.any_plan):
            best = self.within_activations(spare_waits)
        if best is None:
            leanest, least = _leanest(
                self.workload,
                budget_bytes,
                planner,
                first,
                self.allocator,
                self.options,
                spare_waits=spare_waits,
            )
            return leanest, least if leanest is not None else self.lower_of(least)
        if self.workload.recorded is not None and not self.any_plan:
            best = self.with_fewer_repeats(self.probed(best, spare_waits), spare_waits)
        return best, LeastBudget()

    def first_that_fits(self, first: Plan, spare_waits: bool) -> _AllocatedPlan | None:
        """The first plan that fits, from `first` down to the plan of least memory.

        Reserved bytes of plans in between say little about one another, as a full device returns
        what is cached.
        """
        if not first.feasible or self.workload.kind != "chain":
            return None
        floor, plan, inner = self.planner(0).min_feasible_bytes or 0, first, self.budget_bytes
        room = self.budget_bytes - floor
        for left in range(self.most_probes, 0, -1):
            found = self.measured(plan, inner)
            if found.fits and not (spare_waits and found.num_emptied):
                return found
            assert plan.peak_bytes is not None
            inner = min(plan.peak_bytes - 1, floor + room * (left - 1) // self.most_probes)
            plan = self.planner(inner)
            if not plan.feasible:
                break
        return None

    def within_activations(self, spare_waits: bool) -> _AllocatedPlan | None:
        """The first plan that fits, of those within smaller and smaller budgets for activations.

        The shares do not depend on the budget, so that a plan which a refusal names is found again;
        a refusal is why they are tried where no plan of the bytes fits either.
        """
        planner = self.activations()
        if planner is None:
            return None
        most, floor = planner.most_bytes, planner.least_bytes
        if floor is None or floor >= most:
            return None
        best, low, high = None, floor, most
        for share in range(1, _SHARES + 1):
            low = most - (most - floor) * share // _SHARES
            best = self._fitting_by(planner, low, spare_waits)
            if best is not None or (high := low) == floor:
                break
        for _ in range(_HALVINGS if best is not None and not self.any_plan else 0):
            middle = (low + high) // 2
            found = self._fitting_by(planner, middle, spare_waits)
            low, high = (low, middle) if found is None else (middle, high)
            if found is not None and best is not None and found.rank < best.rank:
                best = found
        return best

    def _fitting_by(
        self, planner: ActivationPlanner, inner: int, spare_waits: bool
    ) -> _AllocatedPlan | None:
        """The plan for `inner` bytes of all but the results, if it fits; each is made once."""
        if inner not in self.by_activations:
            plan = planner(inner)
            found = None
            if plan.feasible:
                peak = plan.simulate(self.workload).peak_bytes
                found = self.played(plan, peak)
            self.by_activations[inner] = found
        found = self.by_activations[inner]
        fits = found is not None and found.fits and not (spare_waits and found.num_emptied)
        return found if fits else None

    def lower_of(self, least: LeastBudget) -> LeastBudget:
        """`least`, or a lower one of the plans by activations."""
        tried = [found for found in self.by_activations.values() if found is not None]
        found = min(tried, key=lambda one: one.reserved_bytes, default=None)
        if found is None:
            return least
        least_bytes, known = found.reserved_bytes, least.found_bytes
        if known is not None and known <= least_bytes:
            return least
        plan, allocator, options = found.plan, self.allocator, self.options
        return _least_by(self.workload, plan, least_bytes, least, allocator, options)

    def probed(self, best: _AllocatedPlan, spare_waits: bool) -> _AllocatedPlan:
        """`best`, or a faster plan for a larger inner budget that fits too: reserved bytes jump."""
        if self.workload.kind == "chain":
            return self._walked_down_to(best, spare_waits)
        for near in reversed(_NEAR):
            inner = best.inner + int(near * self.budget_bytes)
            if inner > self.budget_bytes:
                continue
            plan = self.planner(inner)
            if not plan.feasible or plan.makespan_s is None or plan.makespan_s >= best.makespan_s:
                continue
            found = self.measured(plan, inner)
            if found.fits and not (spare_waits and found.num_emptied):
                return found
        return best

    def with_fewer_repeats(self, best: _AllocatedPlan, spare_waits: bool) -> _AllocatedPlan:
        """`best`, or a faster plan that leaves out or swaps repeated runs, and fits, too."""
        given = best.plan
        assert given.schedule is not None
        if best.within_bytes >= _FULL * self.budget_bytes or given.setting.copies is not None:
            return best
        run = given.setting.workload(self.workload, given.schedule).graph

        def fitting(names: Sequence[str]) -> _AllocatedPlan | None:
            plan = replace(given, schedule=Schedule.from_names(names))
            try:
                if plan.simulate(self.workload).peak_bytes > self.budget_bytes:
                    return None
            except InvalidScheduleError:
                return None
            found = self.played(plan, self.budget_bytes)
            return found if found.fits and not (spare_waits and found.num_emptied) else None

        fewer = fewer_repeats(run, given.schedule.names, best, fitting, self.most_tries)
        if fewer.within_bytes >= _FULL * self.budget_bytes:
            return fewer
        assert fewer.plan.schedule is not None
        names = fewer.plan.schedule.names
        return swapped_repeats(run, names, fewer, fitting, self.most_tries)

    @property
    def most_tries(self) -> int:
        """More for a small step, of which each try takes some milliseconds."""
        return max(_LEAST_TRIES, min(_MOST_TRIES, _MOST_PLAYED // self.num_events))

    @property
    def most_probes(self) -> int:
        """How many plans are tried where none was found to fit; fewer for a large step."""
        return max(_LEAST_PROBES, min(_PROBES, _MOST_PLAYED // (10 * self.num_events)))

    @property
    def num_events(self) -> int:
        """Requests and releases of a recorded step without repeated runs, about."""
        recorded = self.workload.recorded
        return max(1, sum(map(len, recorded.records.values()))) if recorded is not None else 1

    def _walked_down_to(self, best: _AllocatedPlan, spare_waits: bool) -> _AllocatedPlan:
        """The first plan of a chain that fits, from the fastest one down to `best`.

        Each plan but the first is that of the next point of the chain's curve; points closer than a
        `_PROBES`-th of the room are left out.
        """
        inner, room = self.budget_bytes, self.budget_bytes - best.inner
        for left in range(_PROBES, 0, -1):
            plan = self.planner(inner)
            if not plan.feasible or plan.makespan_s is None or plan.makespan_s >= best.makespan_s:
                break
            found = self.measured(plan, inner)
            if found.fits and not (spare_waits and found.num_emptied):
                return found
            assert plan.peak_bytes is not None
            inner = min(plan.peak_bytes - 1, best.inner + room * (left - 1) // _PROBES)
        return best


def _leanest(
    workload: Chain | Graph,
    budget_bytes: int,
    planner: Callable[[int], Plan],
    first: Plan,
    allocator: str,
    options: Mapping[str, Any],
    *,
    spare_waits: bool,
) -> tuple[_AllocatedPlan | None, LeastBudget]:
    """The plan of least memory if that plan fits; else the least budget at which it would.

    This plan does not depend on the budget, so the planner finds it again at the budget in the
    hint.
    """
    # A floor of live bytes is a floor of reserved bytes, too.
    unknown = LeastBudget(None, None, first.least.floor_bytes, first.least.scope)
    inner = first.min_feasible_bytes
    if inner is None or first.feasible:
        inner = planner(0).min_feasible_bytes
    if inner is None:
        return None, unknown
    plan = planner(inner)
    if not plan.feasible:
        return None, unknown
    wanted = budget_bytes
    for _ in range(_MOST_MEASURED):
        found = _measure(workload, plan, inner, wanted, allocator, options)
        waits = spare_waits and found.num_emptied
        if found.reserved_bytes <= wanted or (found.fits and not waits):
            break
        # The waits of copies depend on the budget: measure again at the budget of the hint.
        wanted = found.reserved_bytes
    else:
        return None, unknown
    if wanted == budget_bytes:
        return found, unknown
    return None, _least_by(workload, plan, wanted, unknown, allocator, options)


def _least_by(
    workload: Chain | Graph,
    plan: Plan,
    found_bytes: int,
    least: LeastBudget,
    allocator: str,
    options: Mapping[str, Any],
) -> LeastBudget:
    """`least`, with `plan` as the one that fits `found_bytes`."""
    growing = _reserved_by_growing(workload, plan, allocator, options)
    return replace(
        least,
        found_bytes=found_bytes,
        op=plan.binding_op,
        growing_bytes=growing if growing is not None and growing < _WORTH * found_bytes else None,
    )


def _reserved_by_growing(
    workload: Chain | Graph, plan: Plan, allocator: str, options: Mapping[str, Any]
) -> int | None:
    """What a plan reserves in segments that grow; ``None`` where they are none of the allocator."""
    if allocator != "cuda-caching" or options.get("expandable_segments"):
        return None
    requests = requests_of_steps(plan.simulate(workload), measured_steps(workload))
    given = {**options, "expandable_segments": True}
    return play(requests, allocator, **given).peak_reserved_bytes


@dataclass(frozen=True)
class _AllocatedPlan:
    """A plan with its reserved bytes, on an unlimited device and on one as large as the budget."""

    plan: Plan
    inner: int
    makespan_s: float
    reserved_bytes: int
    within_bytes: int
    fits: bool
    num_emptied: int

    @property
    def rank(self) -> tuple[float, int]:
        """Sort key; the lower, the better."""
        return (self.makespan_s, self.num_emptied)


def _measure(
    workload: Chain | Graph,
    plan: Plan,
    inner: int,
    budget_bytes: int,
    allocator: str,
    options: Mapping[str, Any],
) -> _AllocatedPlan:
    # Runs wait for memory within the whole budget, as in the replay of the plan.
    plan = replace(plan, budget_bytes=budget_bytes)
    simulation = plan.simulate(workload)
    plan = replace(
        plan,
        peak_bytes=simulation.peak_bytes,
        makespan_s=simulation.makespan_s,
        overhead=simulation.makespan_s / plan.store_all_s - 1.0 if plan.store_all_s else 0.0,
    )
    requests = requests_of_steps(simulation, measured_steps(workload))
    free = tight = play(requests, allocator, **options)
    if free.peak_reserved_bytes > budget_bytes:
        tight = play(requests, allocator, capacity_bytes=budget_bytes, **options)
    return _AllocatedPlan(
        plan,
        inner,
        simulation.makespan_s,
        free.peak_reserved_bytes,
        tight.peak_reserved_bytes,
        tight.fits,
        tight.num_emptied,
    )


def _finished(
    chosen: _AllocatedPlan,
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
        setting=replace(
            chosen.plan.setting,
            allocator=AllocatorChoice(
                allocator,
                dict(options),
                inner_budget_bytes=chosen.inner,
                reserved_bytes=chosen.within_bytes,
                num_emptied=chosen.num_emptied,
            ),
        ),
        status="optimal" if met else "feasible",
        lower_bound_s=bound,
        bound_scope=first.bound_scope,
        gap=max(0.0, chosen.makespan_s / bound - 1.0) if bound else 0.0,
        least=LeastBudget(),
        planning_s=time.perf_counter() - started,
    )
