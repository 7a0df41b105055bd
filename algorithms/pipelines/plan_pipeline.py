"""Plans of pipelines: what each stage recomputes, and, given leave, where the layers are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from schedsim.errors import UnsupportedError
from schedsim.pipelines import Order, Pipeline, PipelineRun, StagePlan, make_order
from schedsim.pipelines.plan_file import PIPELINE_PLAN_SCHEMA
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import OPTIMALITY_TOLERANCE, Status, installed_versions, timed
from schedsim.plans.scope import PERSISTENT_IN_PARTITION, THIS_PARTITION, Scope
from schedsim.units import format_bytes, format_seconds

from ..chains.persistent import WorkLimitReached
from ._selection import OrderFacts, Selection
from .candidate_cuts import candidate_cuts
from .partition import Partitions
from .partitions_bound import partitions_bound
from .pipeline_bounds import memory_bound, partition_scope, work_bound
from .stage_frontier import MAX_POINTS, StageFrontiers
from .turns_bound import turns_bound

Partition = Literal["given", "auto"]

MOST_ROWS_A_LAYER, FEW_POINTS = 12, 48
"""With more distinct runs of layers than that, cuts are searched with that many points a run."""


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline's step within a budget for each device, and what is proven about it.

    Attributes
    ----------
    status
        ``optimal``: the step time meets `lower_bound_s`; ``feasible``: every device is within the
        budget; ``infeasible``: none was found.
    budget_bytes
        Of each device; ``None`` for a plan that was made without.
    pipeline
        As given, or with the cuts that were chosen.
    run : PipelineRun or None
        The plan, simulated; ``None`` where none was found.
    lower_bound_s, bound_scope
        No schedule of that class within the budget is faster.
    min_feasible_bytes
        The least budget found in which each device fits; an upper bound on the least there is.
    """

    status: Status
    budget_bytes: int | None
    pipeline: Pipeline
    order_name: str
    run: PipelineRun | None
    lower_bound_s: float
    bound_scope: Scope
    min_feasible_bytes: int
    planning_s: float
    options: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether every device is within the budget."""
        return self.status != "infeasible"

    @property
    def makespan_s(self) -> float | None:
        """Time of the step, in seconds."""
        return self.run.makespan_s if self.run else None

    @property
    def gap(self) -> float | None:
        """makespan / lower bound - 1."""
        if self.run is None or not self.lower_bound_s:
            return None
        return max(0.0, self.run.makespan_s / self.lower_bound_s - 1.0)

    @property
    def least(self) -> LeastBudget:
        """The least budget found, of the device that needs most."""
        return LeastBudget(self.min_feasible_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The plan as the content of a ``schedsim.pipeline-plan/1`` file."""
        return {
            "schema": PIPELINE_PLAN_SCHEMA,
            "workload": self.pipeline.name,
            "num_micro_batches": self.pipeline.num_micro_batches,
            "num_devices": self.pipeline.num_devices,
            "order": self.order_name,
            "cuts": list(self.pipeline.cuts),
            "budget_bytes": self.budget_bytes,
            "status": self.status,
            "lower_bound_s": self.lower_bound_s,
            "bound_scope": str(self.bound_scope),
            "gap": self.gap,
            "min_feasible_bytes": self.min_feasible_bytes,
            "planning_s": self.planning_s,
            "options": dict(self.options),
            "stage_plans": [] if self.run is None else stage_plan_names(self.run),
            "step": None if self.run is None else self.run.to_dict(),
            "versions": dict(self.versions),
        }

    def __str__(self) -> str:
        budget = "any memory" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        head = f"{self.pipeline.name}, {budget} a device: {self.status}"
        if self.run is None:
            return f"{head}\n  smallest budget found  {format_bytes(self.min_feasible_bytes)}"
        return "\n".join(
            [
                head,
                *str(self.run).splitlines()[1:],
                f"  bound      {format_seconds(self.lower_bound_s)} over {self.bound_scope}",
            ]
        )


def stage_plan_names(run: PipelineRun) -> list[list[str]]:
    """For each stage the plans that its micro-batches take in turn, as names of runs."""
    found: list[list[str]] = []
    for plan in run.plans:
        several = [plan] if isinstance(plan, StagePlan) else plan
        found.append([" ".join(one.backward) for one in several])
    return found


MOST_DEBTS = 8
"""Under ``zero-bubble``, so many debts are tried at most, spread evenly."""


@timed()
def plan_pipeline(
    pipeline: Pipeline,
    budget_bytes: int,
    *,
    order: str = "1f1b",
    partition: Partition = "given",
    mix: bool = True,
    max_points: int = MAX_POINTS,
) -> PipelinePlan:
    """The fastest step found in which every device stays within `budget_bytes`.

    Early stages hold more micro-batches in flight, so they keep less of each: for every stage the
    points (held, needed, time) of its layers are found, and one is chosen within what the device's
    memory leaves for the number in flight, so that the step as a whole is short. The choices are
    simulated; a device over its budget is chosen for again with less room. Under ``zero-bubble``,
    devices may owe fewer gradients of weights.

    More memory never gives a slower step: a budget looks at every run that a smaller budget looks
    at, or knows one that is as fast; and the partitions that ``"auto"`` chooses from do not depend
    on the budget.

    Parameters
    ----------
    order
        Name of the order; see `schedsim.pipelines.make_order`.
    partition
        ``"auto"`` chooses the cuts too, for one stage a device.
    mix
        Whether micro-batches of one stage may keep different things, in turn.
    max_points
        Points kept for each run of layers.

    Raises
    ------
    UnsupportedError
        ``"auto"`` with several stages a device.
    SchedsimError
        The order does not go with the pipeline.

    Notes
    -----
    The fronts take O(l P Q log) a run of l layers; a choice O(stages * points) evaluations of the
    step, of O(actions) each; ``"auto"`` O(stages * layers^2) costs of stages besides, and about as
    many times as long as there are candidates.

    Examples
    --------
    >>> from schedsim.pipelines import make_pipeline
    >>> from schedsim.workloads.synthetic import uniform
    >>> plan = plan_pipeline(make_pipeline(uniform(8), 4, 8), 60_000_000)
    >>> plan.status, round(plan.makespan_s, 6), [use.peak_bytes for use in plan.run.devices]
    ('feasible', 0.069, [46000000, 54000000, 37000000, 20000000])
    """
    actions = _order(pipeline, order)
    if partition == "auto" and pipeline.num_chunks > 1:
        raise UnsupportedError(
            f"the partition of {pipeline.num_chunks} stages a device is not searched",
            hint="one stage a device, or cuts of your own",
        )
    num_devices = pipeline.num_devices
    fronts = StageFrontiers(
        pipeline.chain,
        budget_bytes,
        frees_outputs=bool(pipeline.collectives) or (pipeline.free_outputs and num_devices > 1),
        frees_last=bool(pipeline.collectives),
        max_points=max_points,
    )

    facts = OrderFacts(pipeline, actions)
    whole = _whole(fronts, pipeline)
    owed = _debts(pipeline.num_devices) if order == "zero-bubble" else []
    # A smaller debt needs less memory, and so less recomputation: it may be faster, too.
    orders = {None: facts} | {
        most: OrderFacts(pipeline, _order(pipeline, order, most)) for most in owed
    }
    every = [pipeline]
    if partition == "auto":
        few = _for_search(whole)
        all_cuts = candidate_cuts(pipeline, facts, whole, few, mix=mix)
        every = [replace(pipeline, cuts=cuts) for cuts in all_cuts]
    chosen = _fastest(every, orders, fronts, whole, budget_bytes, mix=mix)
    run, least = chosen.run, chosen.least_bytes
    options: dict[str, Any] = {"partition": partition, "mix": mix, "max_points": max_points}
    if chosen.most_owed is not None:
        options["most_owed"] = chosen.most_owed
    bound, scope = work_bound(pipeline), THIS_PARTITION
    if run is not None and partition == "auto":
        facts = orders[chosen.most_owed]
        partitions = Partitions(pipeline, facts.order, _for_search(fronts), mix=mix)
        bound = partitions_bound(partitions, budget_bytes, run.makespan_s)
        pipeline, scope = run.pipeline, partition_scope(run.pipeline.cuts)
    elif partition == "given" and _can_fit(pipeline, fronts):
        facts = orders[chosen.most_owed]
        most = memory_bound(fronts, pipeline, facts.order, budget_bytes)
        if run is not None and most < run.makespan_s:
            most = max(most, turns_bound(fronts, pipeline, facts.order, budget_bytes))
        # It is infinite where nothing fits, which the status says.
        if bound * (1 + OPTIMALITY_TOLERANCE) < most < np.inf:
            bound, scope = most, PERSISTENT_IN_PARTITION
    if run is not None:
        least = min(least, run.peak_bytes)
    status: Status = "infeasible"
    if run is not None:
        bound = min(bound, run.makespan_s)
        met = run.makespan_s <= bound * (1 + OPTIMALITY_TOLERANCE)
        status = "optimal" if met else "feasible"
    return PipelinePlan(
        status=status,
        budget_bytes=budget_bytes,
        pipeline=pipeline,
        order_name=order,
        run=run,
        lower_bound_s=bound,
        bound_scope=scope,
        min_feasible_bytes=least,
        planning_s=0.0,
        options=options,
        versions=installed_versions(),
    )


def _order(pipeline: Pipeline, name: str, most_owed: int | None = None) -> Order:
    return make_order(
        name,
        pipeline.num_devices,
        pipeline.num_micro_batches,
        pipeline.num_chunks,
        most_owed=most_owed,
    )


def _debts(num_devices: int) -> list[int]:
    """Smaller debts than the most, ``num_devices - 1``, descending; whatever the budget is."""
    count = min(num_devices - 1, MOST_DEBTS)
    return [int(owed) for owed in np.linspace(num_devices - 2, 0, count).round()]


def _can_fit(pipeline: Pipeline, fronts: StageFrontiers) -> bool:
    """Whether every stage by itself has a point within the fronts' cap."""
    stages = range(pipeline.num_stages)
    return all(fronts.front(*pipeline.cuts[v : v + 2]).num_points for v in stages)


def _for_search(fronts: StageFrontiers) -> StageFrontiers:
    """`fronts`, or thinner ones where there are many different runs of layers to look at."""
    if fronts.problem.num_rows <= MOST_ROWS_A_LAYER * fronts.chain.num_stages:
        return fronts
    return StageFrontiers(
        fronts.chain,
        fronts.cap_bytes,
        frees_outputs=fronts.frees_outputs,
        frees_last=fronts.frees_last,
        max_points=min(fronts.max_points, FEW_POINTS),
    )


@dataclass(frozen=True)
class _FastestRun:
    """The fastest run that was found, its debt, and the least bytes that some run takes."""

    run: PipelineRun | None
    most_owed: int | None
    least_bytes: int


def _fastest(
    every: Sequence[Pipeline],
    orders: Mapping[int | None, OrderFacts],
    fronts: StageFrontiers,
    whole: StageFrontiers,
    budget_bytes: int,
    *,
    mix: bool,
) -> _FastestRun:
    """Over the partitions and the orders, those that promise most first."""
    selections = [
        (most_owed, Selection(one, facts, whole, mix=mix))
        for one in every
        for most_owed, facts in orders.items()
    ]
    able = [(owed, selection) for owed, selection in selections if selection.can_fit]
    least: float = np.inf
    smallest: Selection | None = None
    for _, selection in sorted(able, key=lambda pair: pair[1].least_bytes):
        if selection.least_bytes < least:
            peak_bytes = selection.run(selection.least()).peak_bytes
            if peak_bytes < least:
                least, smallest = peak_bytes, selection
    best: PipelineRun | None = None
    debt = None
    for owed, selection in sorted(able, key=lambda pair: pair[1].promised_s(budget_bytes)):
        order, pipeline = selection.order, selection.pipeline

        def within_s(size: int, order: Order = order, pipeline: Pipeline = pipeline) -> float:
            return memory_bound(fronts, pipeline, order, size)

        given = pipeline.cuts == every[0].cuts
        run = selection.best(budget_bytes, within_s, best, thorough=given)
        if run is not None and (best is None or run.makespan_s < best.makespan_s):
            best, debt = run, owed
    # Of other partitions the fixed plans are not looked at.
    if best is None and smallest is not None and smallest.pipeline.cuts == every[0].cuts:
        least = min(least, smallest.least_peak_bytes())
    return _FastestRun(best, debt, int(least))


def _whole(fronts: StageFrontiers, pipeline: Pipeline) -> StageFrontiers:
    """Fronts whose points do not depend on the budget: those of any memory.

    A pipeline whose curves are too many for that keeps the fronts of its budget.
    """
    chain = fronts.chain
    most = chain.input_bytes
    for layer in chain.stages:
        most += 2 * (layer.saved_bytes + layer.output_bytes)
        work = (layer.forward_workspace_bytes, layer.backward_workspace_bytes)
        most += max(*work, layer.saving_workspace_bytes or 0)
    whole = StageFrontiers(
        chain,
        most,
        frees_outputs=fronts.frees_outputs,
        frees_last=fronts.frees_last,
        max_points=fronts.max_points,
    )
    try:
        _can_fit(pipeline, whole)
    except WorkLimitReached:
        return fronts
    return whole
