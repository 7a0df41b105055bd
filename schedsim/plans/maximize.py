"""The largest batch, sequence or number of layers that fits a budget, and the fastest one.

A workload family is a function from a size (``batch=n``) to a workload. The search does not assume
that memory grows with the size: a size that is not planned is compared op by op with one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import ge
from typing import Any

from ..api import PlannerLike, try_plan
from ..checks.checked_arguments import checked
from ..dataflow.chain import Chain
from ..dataflow.graph import COMPUTE, Graph
from ..errors import InfeasibleBudgetError, SchedsimError
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from .budgets import sized_budget
from .measured_boundary import measured_boundary, where_met
from .plan import Plan
from .scope import ANY_SCHEDULE, PERSISTENT

# Classes of schedules in which a budget that is too small for a workload is too small for every
# larger one.
_CLASSES = (PERSISTENT, ANY_SCHEDULE)
MAX_SIZE = 2**20
MAX_PLANS = 64
# Of a step recorded on a device, where the search for the fastest plan plays many.
_ANY = {"any_plan": True}
# Limit on sizes that are built only to be compared, or for their store-all time.
_MOST_BUILT = 256


@dataclass(frozen=True)
class Sized:
    """One size of the workload family, with its plan.

    Attributes
    ----------
    work
        The amount that one step processes, in units of `Maximum.unit`.
    """

    size: int
    work: float
    plan: Plan

    @property
    def rate(self) -> float:
        """Units of work per second of the planned step; 0 where nothing fits."""
        step_s = self.plan.makespan_s
        return self.work / step_s if step_s else 0.0


@dataclass(frozen=True)
class Maximum:
    """The result of `maximize`.

    Attributes
    ----------
    largest
        The largest size that fits, with its plan.
    fastest
        The planned size that does the most work per second.
    beyond
        The next larger size, which does not fit, with its infeasible plan; ``None`` where the
        search reached its limit.
    proof
        How sure it is that nothing larger fits: ``proven`` over the class in `scope`, up to
        `checked_to`; ``found`` where the planner found no schedule but proves nothing.
    checked_to
        No size above `largest` up to this one fits: each was planned, or is op by op at least as
        large as a size that does not fit.
    fastest_proven
        Whether it is proven that no size up to `largest` is faster; store-all time bounds the sizes
        that were not planned.
    tried
        Every size that was planned, ascending.
    """

    unit: str
    largest: Sized
    fastest: Sized
    beyond: Sized | None
    proof: str
    scope: str
    checked_to: int
    fastest_proven: bool
    tried: tuple[Sized, ...] = field(repr=False)


@checked
def maximize(
    family: Callable[[int], Chain | Graph | tuple[Chain | Graph, Mapping[str, Any]]],
    budget_bytes: int | str,
    planner: PlannerLike | None = None,
    *,
    work: Callable[[int], float] = float,
    unit: str = "samples",
    step: int = 1,
    max_size: int = MAX_SIZE,
    max_plans: int = MAX_PLANS,
    compare: bool = True,
    **options: Any,
) -> Maximum:
    """The largest size at which the workload of `family` fits, and the size of most work a second.

    The search doubles the size until nothing fits, then halves the interval. It then looks at the
    sizes beyond the largest that fits, up to the first doubled size that did not fit, at most 256
    of them. Each of these is compared op by op with a size that is proven not to fit, and is
    planned if it is smaller in anything. At last sizes are planned for speed, in the order of the
    rates that their store-all times allow, until no other size can be faster or `max_plans` sizes
    are planned.

    Parameters
    ----------
    family
        Returns the workload at a size, alone or in a pair with further planner options for that
        size (for example memory levels as large as its checkpoints). It may raise `SchedsimError`
        at a size for which there is no workload.
    work, unit
        The amount that a step at a size processes, and its unit: samples, tokens.
    step
        Sizes are multiples of it.
    compare
        Whether sizes in between may be built and compared. ``False`` suits families where building
        a size means measuring a model: the search then looks where the least budgets of the sizes
        so far say that the budget is met, instead of doubling. For speed it plans the size at which
        store-all just fits, and the proof covers the next size alone.
    **options
        Passed to the planner.

    Raises
    ------
    InfeasibleBudgetError
        Not even the least size fits.

    Notes
    -----
    Why a larger workload needs no less memory. Let a workload have the same ops as a smaller one,
    each with at least the bytes: a schedule of the larger is legal on the smaller, with a peak no
    larger. The same holds for a chain with additional stages inside whose outputs are no smaller
    than the output of the shorter chain there: drop the runs of these stages, and the schedule is
    legal on the shorter chain; each tensor alive there has a counterpart alive on the longer chain.

    O(log size) plans to find the largest, `max_plans` for the fastest.

    Examples
    --------
    >>> import schedsim
    >>> def chain(batch):
    ...     return schedsim.Chain.from_arrays("two", 4 * batch, forward_s=[1, 1],
    ...         backward_s=[2, 2], output_bytes=[4 * batch] * 2, saved_bytes=[10 * batch] * 2)
    >>> found = maximize(chain, 100)
    >>> found.largest.size, found.beyond.plan.min_feasible_bytes, found.proof
    (3, 104, 'proven')
    """

    further: dict[int, Mapping[str, Any]] = {}

    def workload_at(size: int) -> Chain | Graph:
        item = family(size)
        workload, further[size] = item if isinstance(item, tuple) else (item, {})
        return workload

    def plan_of(workload: Chain | Graph, size: int, any_plan: bool = False) -> Plan:
        given = {**options, **further[size]}
        if any_plan and workload.recorded is not None and given.get("allocator") is None:
            given["allocator_options"] = {**(given.get("allocator_options") or {}), **_ANY}
        return try_plan(workload, bound_bytes, planner, **given)

    def least_of(workload: Chain | Graph, size: int) -> int | None:
        if isinstance(workload, Graph):  # it takes a search
            return None
        given = {**options, **further[size], "allocator": "exact", "allocator_options": None}
        return try_plan(workload, 1, planner, **given).min_feasible_bytes

    bound_bytes = sized_budget(budget_bytes)
    search = _LargestSearch(workload_at, plan_of, work, step, max_size)
    if compare:
        return search.run(unit, max_plans)
    return search.run_measured(unit, bound_bytes, least_of)


class _LargestSearch:
    def __init__(
        self,
        family: Callable[[int], Chain | Graph],
        plan_of: Callable[[Chain | Graph, int, bool], Plan],
        work: Callable[[int], float],
        step: int,
        max_size: int,
    ) -> None:
        if step < 1 or max_size < step:
            raise SchedsimError(f"no size is a multiple of {step} up to {max_size}")
        self.family, self.plan_of, self.work, self.step = family, plan_of, work, step
        self.most = max_size // step
        self.built: dict[int, Chain | Graph | None] = {}
        self.tried: dict[int, Sized | None] = {}
        self.planned_well: set[int] = set()

    def workload(self, number: int) -> Chain | Graph | None:
        """The workload at the size ``number * step``; ``None`` if the family has none."""
        if number not in self.built:
            try:
                self.built[number] = self.family(number * self.step)
            except SchedsimError:
                if number == 1:  # the least size fails too: the size is not the fault
                    raise
                self.built[number] = None
        return self.built[number]

    def at(self, number: int) -> Sized | None:
        """The family planned at this size; planned once."""
        if number not in self.tried:
            workload, size = self.workload(number), number * self.step
            self.tried[number] = None
            if workload is not None:
                self.tried[number] = self._sized(workload, size, any_plan=True)
        return self.tried[number]

    def _sized(self, workload: Chain | Graph, size: int, *, any_plan: bool) -> Sized:
        plan = self.plan_of(workload, size, any_plan)
        if plan.search.interrupted:  # the user interrupted: end the whole search
            raise KeyboardInterrupt
        return Sized(size, self.work(size), plan)

    def fits(self, number: int) -> bool:
        """Whether a plan fits at this size."""
        sized = self.at(number)
        return sized is not None and sized.plan.feasible

    def run(self, unit: str, max_plans: int) -> Maximum:
        """Find the largest size and the fastest."""
        if not self.fits(1):
            self._refuse()
        best = 1
        while best < self.most and self.fits(min(2 * best, self.most)):
            best = min(2 * best, self.most)
        high = min(2 * best, self.most)
        top = high
        while high - best > 1:
            middle = (best + high) // 2
            best, high = (middle, high) if self.fits(middle) else (best, middle)
        best, top = self._beyond_gaps(best, min(top, best + _MOST_BUILT))
        beyond = self._planned_beyond(best)
        fastest, fastest_proven = self._fastest(best, max_plans)
        return self._maximum(unit, max(top, best + 1), best, beyond, fastest, fastest_proven)

    def run_measured(
        self,
        unit: str,
        budget_bytes: int,
        least_of: Callable[[Chain | Graph, int], int | None],
    ) -> Maximum:
        """The same with few sizes, each of which takes a measurement to build."""

        def least_bytes(number: int) -> int | None:
            workload = self.workload(number)
            return None if workload is None else least_of(workload, number * self.step)

        if not self.fits(1):
            self._refuse()
        best = measured_boundary(self.fits, least_bytes, budget_bytes, self.most)
        beyond = self._planned_beyond(best)
        stored = where_met(self._stored_bytes(), budget_bytes)
        if stored is not None:
            self.at(min(max(1, stored), best))
        return self._maximum(unit, best + 1, best, beyond, self._fastest_planned(), False)

    def _stored_bytes(self) -> dict[int, int]:
        """The peak of store-all, of each size that was built."""
        found = {}
        for number, workload in self.built.items():
            if workload is not None:
                found[number] = simulate(workload, Schedule.store_all(workload)).peak_bytes
        return found

    def _planned_beyond(self, best: int) -> Sized | None:
        """The next size after `best`, if there is one; `best` is planned well."""
        self._planned_well(best)
        return self.at(best + 1) if best < self.most else None

    def _maximum(
        self,
        unit: str,
        checked: int,
        best: int,
        beyond: Sized | None,
        fastest: Sized,
        fastest_proven: bool,
    ) -> Maximum:
        proven = beyond is not None and _is_proof(beyond.plan)
        return Maximum(
            unit=unit,
            largest=self._planned(best),
            fastest=fastest,
            beyond=beyond,
            proof="limit" if best == self.most else "proven" if proven else "found",
            scope=str(beyond.plan.least.scope) if proven and beyond is not None else "",
            checked_to=min(checked, self.most) * self.step,
            fastest_proven=fastest_proven,
            tried=tuple(one for _, one in sorted(self.tried.items()) if one is not None),
        )

    def _planned(self, number: int) -> Sized:
        sized = self.at(number)
        assert sized is not None
        return sized

    def _planned_well(self, number: int) -> Sized:
        """The size with a plan that was sought as long as that of a single size."""
        sized, workload = self._planned(number), self.workload(number)
        if number in self.planned_well:
            return sized
        self.planned_well.add(number)
        if workload is not None and workload.recorded is not None:
            better = self._sized(workload, sized.size, any_plan=False)
            if better.plan.feasible and better.rate > sized.rate:
                self.tried[number] = sized = better
        return sized

    def _refuse(self) -> None:
        plan = self._planned(1).plan
        least = plan.min_feasible_bytes
        raise InfeasibleBudgetError(
            f"not even {self.step} fits in {plan.budget_bytes} bytes with {plan.planner}",
            plan=plan,
            hint=f"{plan.least.sentence()} there: {least} bytes" if least else "",
        )

    def _beyond_gaps(self, best: int, top: int) -> tuple[int, int]:
        """The largest number that fits, knowing that `best` fits, and how far was checked."""
        number, barrier = best + 1, None
        while number <= top:
            workload = self.workload(number)
            known = barrier is not None and workload is not None and contains(workload, barrier)
            if workload is not None and not known:
                if self.fits(number):
                    best, barrier, top = number, None, min(max(top, number + 1), self.most)
                elif _is_proof(self._planned(number).plan):
                    barrier = workload
            number += 1
        return best, top

    def _fastest_planned(self) -> Sized:
        """The size with the most work per second of those planned so far, planned well."""
        fastest = max((one for one in self.tried.values() if one), key=lambda one: one.rate)
        return self._planned_well(fastest.size // self.step)

    def _fastest(self, best: int, max_plans: int) -> tuple[Sized, bool]:
        """The size with the most work per second, and whether that is proven up to `best`."""
        fastest = self._fastest_planned()
        limits = []
        numbers = range(1, best + 1) if best <= _MOST_BUILT else _spread(best, _MOST_BUILT)[1:]
        for number in numbers:
            workload = self.workload(number)
            if workload is not None and number not in self.tried:
                most = self.work(number * self.step) / (workload.store_all_s or 1e-300)
                limits.append((most, number))
        limits.sort(reverse=True)
        open_numbers = [number for most, number in limits if most > fastest.rate]
        # The size with the highest possible rate comes first; too many candidates are thinned out
        # evenly.
        chosen = open_numbers
        if len(open_numbers) > max_plans:
            chosen = [open_numbers[i] for i in _spread(len(open_numbers) - 1, max_plans - 1)]
        allowed = {number: most for most, number in limits}
        for number in chosen:
            if allowed[number] > fastest.rate:
                sized = self.at(number)
                if sized is not None and sized.rate > fastest.rate:
                    fastest = sized
        left = [n for n in open_numbers if n not in self.tried and allowed[n] > fastest.rate]
        return fastest, not left and best <= _MOST_BUILT


def _spread(last: int, count: int) -> list[int]:
    return sorted({last * k // max(1, count) for k in range(count + 1)})


def _is_proof(plan: Plan) -> bool:
    """Whether an infeasible plan proves that no schedule of its class fits."""
    return plan.proven_infeasible and plan.least.scope in _CLASSES


def contains(larger: Chain | Graph, smaller: Chain | Graph) -> bool:
    """Whether every schedule of `larger` gives a schedule of `smaller` with no larger peak.

    True only where that is certain: the same ops with at least the bytes, or a chain with
    additional stages inside. See `maximize`.

    Examples
    --------
    >>> def uniform(num_stages, size):
    ...     ones = [1] * num_stages
    ...     return Chain.from_arrays("u", size, forward_s=ones, backward_s=ones,
    ...                              output_bytes=[size] * num_stages,
    ...                              saved_bytes=[3 * size] * num_stages)
    >>> contains(uniform(5, 2), uniform(3, 2)), contains(uniform(5, 2), uniform(3, 4))
    (True, False)
    """
    if larger.static_bytes < smaller.static_bytes or _has_more(larger) or _has_more(smaller):
        return False
    if isinstance(larger, Chain) and isinstance(smaller, Chain):
        return _contains_chain(larger, smaller)
    if isinstance(larger, Graph) and isinstance(smaller, Graph):
        return _contains_graph(larger, smaller)
    return False


def _has_more(workload: Chain | Graph) -> bool:
    """Whether more than sizes matters: variants, several streams or several memory pools."""
    if isinstance(workload, Chain):
        return any(stage.variants for stage in workload.stages)
    streams = {op.stream for op in workload.ops}
    pooled = any(op.pools for op in workload.ops) or workload.pool_static_bytes
    return bool(workload.variants or pooled or workload.input_pools or streams - {COMPUTE})


def _contains_chain(larger: Chain, smaller: Chain) -> bool:
    extra = larger.num_stages - smaller.num_stages
    if extra < 0 or larger.input_bytes < smaller.input_bytes:
        return False
    if _at_loss(larger) < _at_loss(smaller):
        return False
    rows, fewer = _stage_sizes(larger), _stage_sizes(smaller)
    head = _num_at_least(rows, fewer)
    tail = _num_at_least(rows[::-1], fewer[::-1])
    if extra == 0:
        return head == smaller.num_stages
    # The additional stages come after `cut` matched stages; the output of each must be at least the
    # output of the smaller chain at that place. The last stage stays last, as the loss reads its
    # output.
    for cut in range(max(smaller.num_stages - tail, 0), min(head, smaller.num_stages - 1) + 1):
        passed = smaller.stages[cut - 1].output_bytes if cut else smaller.input_bytes
        between = larger.stages[cut : cut + extra]
        if all(stage.output_bytes >= passed for stage in between):
            return True
    return False


def _at_loss(chain: Chain) -> int:
    """Bytes that the loss asks for: its workspace, which may be negative, and the gradient."""
    return chain.loss_workspace_bytes + chain.stages[-1].output_bytes


def _stage_sizes(chain: Chain) -> list[tuple[int, ...]]:
    """For each stage, sizes of which each adds to the peak."""
    found: list[tuple[int, ...]] = []
    written = 0
    for stage in chain.stages:
        saving = stage.saving_workspace_bytes
        plain = stage.forward_workspace_bytes
        found.append(
            (
                stage.output_bytes,
                stage.saved_bytes - stage.output_bytes,
                plain,
                stage.backward_workspace_bytes + written,
                plain if saving is None else saving,
            )
        )
        written = stage.output_bytes
    return found


def _num_at_least(rows: list[tuple[int, ...]], fewer: list[tuple[int, ...]]) -> int:
    """The number of first rows in which no size is below that of `fewer`."""
    pairs = zip(rows, fewer, strict=False)
    return sum(1 for _ in takewhile(lambda pair: all(map(ge, *pair)), pairs))


def _contains_graph(larger: Graph, smaller: Graph) -> bool:
    def shape(graph: Graph) -> list[tuple[Any, ...]]:
        return [
            (
                *(op.name, op.phase, op.reads, tuple(op.writes), op.optional, op.once),
                *(op.required, tuple(sorted(op.in_place.items()))),
            )
            for op in graph.ops
        ]

    def sizes(graph: Graph) -> list[int]:
        found = [graph.inputs[name] for name in sorted(graph.inputs)]
        for op in graph.ops:
            saving = op.saving_workspace_bytes
            plain = op.workspace_bytes
            # A negative workspace counts with the outputs, which a backward op always makes.
            asked = plain if op.phase == "forward" else plain + sum(op.writes.values())
            found += [*op.writes.values(), asked, plain if saving is None else saving]
        return found

    same = larger.results == smaller.results and sorted(larger.inputs) == sorted(smaller.inputs)
    if not same or shape(larger) != shape(smaller):
        return False
    # In-place outputs have the sizes of their inputs, so they are no smaller either.
    return all(a >= b for a, b in zip(sizes(larger), sizes(smaller), strict=True))
