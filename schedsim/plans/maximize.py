"""The largest batch, sequence or number of layers that fits a budget, and the fastest.

A workload family is a function from a size (``batch=n``) to a workload. Nothing is taken for
granted about how memory grows with the size: what is not planned is compared op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..api import PlannerLike, try_plan
from ..checks.checked_arguments import checked
from ..dataflow.chain import Chain
from ..dataflow.graph import COMPUTE, Graph
from ..errors import InfeasibleBudgetError, SchedsimError
from .budgets import sized_budget
from .plan import Plan
from .scope import ANY_SCHEDULE, PERSISTENT

# Classes of schedules in which what does not fit a smaller workload fits no larger one.
_CLASSES = (PERSISTENT, ANY_SCHEDULE)
MAX_SIZE = 2**20
MAX_PLANS = 64
# Sizes that are built, to be compared with what does not fit, or for their store-all time.
_MOST_BUILT = 256


@dataclass(frozen=True)
class Sized:
    """The workload family at one size, planned.

    Attributes
    ----------
    work
        What one step processes, in units of `Maximum.unit`.
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
    """What `maximize` found.

    Attributes
    ----------
    largest
        The largest size that fits, with its plan.
    fastest
        The size of the most work per second among those planned.
    beyond
        The next size, which does not fit, with its infeasible plan; ``None`` where the search
        ended at its limit.
    proof
        Why nothing larger fits: ``proven`` over the class in `scope`, up to `checked_to`;
        ``found`` where a planner that proves nothing found nothing.
    checked_to
        Sizes above `largest` up to this one do not fit: planned, or op by op at least as large as
        one that does not.
    fastest_proven
        Whether no size up to `largest` can be faster: store-all time bounds those not planned.
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

    The search doubles the size until nothing fits and halves the interval. It then looks at the
    sizes beyond, up to the first double that did not fit, or at 256 of them: each is compared, op
    by op, with a size that is proven not to fit, and planned where it is smaller in anything.
    Then sizes are planned for speed, in the order of the rates that their store-all times allow,
    until no other size can be faster, or until `max_plans` sizes are planned.

    Parameters
    ----------
    family
        Gives the workload at a size, alone or in a pair with further options of the planner there
        (memory levels as large as its checkpoints, say). It may raise `SchedsimError` at sizes
        there are none of.
    work, unit
        What a step at a size processes, and in what: samples, tokens.
    step
        Sizes are multiples of it.
    compare
        Whether sizes in between may be built and compared. Without it, as where building a size
        means measuring a model, the proof speaks of the next size alone.
    **options
        Passed to the planner.

    Raises
    ------
    InfeasibleBudgetError
        Not even the least size fits.

    Notes
    -----
    A workload that has the ops of another, and in each at least its bytes, fits no smaller budget:
    the schedule that fits it is legal on the smaller one, with a peak no larger. So does a chain
    with further stages inside, where what these pass on is no smaller than what the shorter chain
    passes on there: the schedule without the runs of these stages is legal on the shorter one, and
    what lives there lives, under one name or another, on the longer.

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

    def plan_of(workload: Chain | Graph, size: int) -> Plan:
        return try_plan(workload, bound_bytes, planner, **options, **further[size])

    bound_bytes = sized_budget(budget_bytes)
    search = _LargestSearch(workload_at, plan_of, work, step, max_size)
    return search.run(unit, max_plans, compare)


class _LargestSearch:
    def __init__(
        self,
        family: Callable[[int], Chain | Graph],
        plan_of: Callable[[Chain | Graph, int], Plan],
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

    def workload(self, number: int) -> Chain | Graph | None:
        """The workload at the size ``number * step``; ``None`` where there is none."""
        if number not in self.built:
            try:
                self.built[number] = self.family(number * self.step)
            except SchedsimError:
                if number == 1:  # what is wrong is not the size
                    raise
                self.built[number] = None
        return self.built[number]

    def at(self, number: int) -> Sized | None:
        """The family planned at this size; planned once."""
        if number not in self.tried:
            workload, size = self.workload(number), number * self.step
            self.tried[number] = None
            if workload is not None:
                plan = self.plan_of(workload, size)
                if plan.search.interrupted:  # its planner gave its best: the search ends
                    raise KeyboardInterrupt
                self.tried[number] = Sized(size, self.work(size), plan)
        return self.tried[number]

    def fits(self, number: int) -> bool:
        """Whether a plan fits at this size."""
        sized = self.at(number)
        return sized is not None and sized.plan.feasible

    def run(self, unit: str, max_plans: int, compare: bool) -> Maximum:
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
        if compare:
            best, top = self._beyond_gaps(best, min(top, best + _MOST_BUILT))
        checked = max(top, best + 1) if compare else best + 1
        checked = min(checked, self.most)
        beyond = self.at(best + 1) if best < self.most else None
        largest = self._planned(best)
        fastest, fastest_proven = self._fastest(best, max_plans, compare)
        proven = beyond is not None and _is_proof(beyond.plan)
        return Maximum(
            unit=unit,
            largest=largest,
            fastest=fastest,
            beyond=beyond,
            proof="limit" if best == self.most else "proven" if proven else "found",
            scope=str(beyond.plan.least.scope) if proven and beyond is not None else "",
            checked_to=checked * self.step,
            fastest_proven=fastest_proven,
            tried=tuple(one for _, one in sorted(self.tried.items()) if one is not None),
        )

    def _planned(self, number: int) -> Sized:
        sized = self.at(number)
        assert sized is not None
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
        """The largest number that fits, given that `best` does, and up to where that was seen."""
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

    def _fastest(self, best: int, max_plans: int, compare: bool) -> tuple[Sized, bool]:
        """The size of most work a second, and whether that is proven up to `best`."""
        fastest = max((one for one in self.tried.values() if one), key=lambda one: one.rate)
        if not compare:
            return fastest, False
        limits = []
        numbers = range(1, best + 1) if best <= _MOST_BUILT else _spread(best, _MOST_BUILT)[1:]
        for number in numbers:
            workload = self.workload(number)
            if workload is not None and number not in self.tried:
                most = self.work(number * self.step) / (workload.store_all_s or 1e-300)
                limits.append((most, number))
        limits.sort(reverse=True)
        open_numbers = [number for most, number in limits if most > fastest.rate]
        # What the bound allows most comes first; where too many are left, they are spread.
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
    """Whether an infeasible plan says that no schedule of its class fits."""
    return plan.proven_infeasible and plan.least.scope in _CLASSES


def contains(larger: Chain | Graph, smaller: Chain | Graph) -> bool:
    """Whether every schedule of `larger` gives one of `smaller` with no larger peak.

    True only where that is certain: the same ops with at least the bytes, or a chain with further
    stages inside. See `maximize`.

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
    """Whether more than sizes decides: variants, or further streams or memory pools."""
    if isinstance(workload, Chain):
        return any(stage.variants for stage in workload.stages)
    streams = {op.stream for op in workload.ops}
    pooled = any(op.pools for op in workload.ops) or workload.pool_static_bytes
    return bool(workload.variants or pooled or workload.input_pools or streams - {COMPUTE})


def _contains_chain(larger: Chain, smaller: Chain) -> bool:
    extra = larger.num_stages - smaller.num_stages
    if extra < 0 or larger.input_bytes < smaller.input_bytes:
        return False
    if larger.loss_workspace_bytes < smaller.loss_workspace_bytes:
        return False
    head = 0
    for big, small in zip(larger.stages, smaller.stages, strict=False):
        if not _stage_contains(big, small):
            break
        head += 1
    tail = 0
    pairs = zip(reversed(larger.stages), reversed(smaller.stages), strict=False)
    for big, small in pairs:
        if not _stage_contains(big, small):
            break
        tail += 1
    if extra == 0:
        return head == smaller.num_stages
    # The further stages stand after `cut` matched ones; each must pass on no less than is passed
    # on there in the smaller chain. The last stage stays the last, as the loss reads its output.
    for cut in range(max(smaller.num_stages - tail, 0), min(head, smaller.num_stages - 1) + 1):
        passed = smaller.stages[cut - 1].output_bytes if cut else smaller.input_bytes
        between = larger.stages[cut : cut + extra]
        if all(stage.output_bytes >= passed for stage in between):
            return True
    return False


def _stage_contains(big: Any, small: Any) -> bool:
    def bytes_of(stage: Any) -> tuple[int, ...]:
        saving = stage.saving_workspace_bytes
        plain = stage.forward_workspace_bytes
        return (
            stage.output_bytes,
            stage.saved_bytes - stage.output_bytes,
            plain,
            stage.backward_workspace_bytes,
            plain if saving is None else saving,
        )

    return all(a >= b for a, b in zip(bytes_of(big), bytes_of(small), strict=True))


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
            found += [*op.writes.values(), plain, plain if saving is None else saving]
        return found

    same = larger.results == smaller.results and sorted(larger.inputs) == sorted(smaller.inputs)
    if not same or shape(larger) != shape(smaller):
        return False
    # Sizes of in-place outputs are tied to their inputs, and so are no smaller either.
    return all(a >= b for a, b in zip(sizes(larger), sizes(smaller), strict=True))
