"""The memory/time curve of a workload, with any planner."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..api import PlannerLike, check_limits, curve_planner, get_planner, try_plan
from ..checks.checked_arguments import checked
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..dataflow.recomputation_rules import RecomputationRules, check_beside_recompute, evicts_some
from ..errors import SchedsimError
from ..simulation.schedule import Schedule
from ..simulation.simulator import simulate
from ..workloads.given import WorkloadLike, read_workload
from .budgets import read_budget
from .curves import ParetoCurve, ParetoPoint
from .scope import ANY_SCHEDULE, Scope

_NO_LIMIT = 2**53 - 1
_NUM_SAMPLES = 32
_NUM_SEARCHES = 12
_WORK = 60.0


@checked
def pareto(
    workload: WorkloadLike,
    planner: PlannerLike | None = None,
    *,
    order: Literal["fixed", "free"] | None = None,
    effort: float | None = None,
    time_limit_s: float | None = None,
    num_points: int | None = None,
    seed: int | None = None,
    budgets: Iterable[int | str] | None = None,
    keep: str | Sequence[str] | None = None,
    recompute: str | Sequence[str] | None = None,
) -> ParetoCurve:
    """The memory/time curve of `planner` on `workload`, its knee marked.

    Parameters
    ----------
    planner
        By default the planner that finds a whole curve. On a chain this gives every break point of
        the optimal persistent schedules, exactly, in one run. On a graph, searches run at budgets
        that are chosen as the curve appears, with a proven bound beside it (see
        `schedsim.algorithms.graphs.graph_frontier`). Any other planner, a name or a function, plans
        at each of `budgets`.
    order
        Of the first runs of a graph: ``"fixed"`` (default) or ``"free"``.
    effort, time_limit_s, num_points, seed
        Limits of the search on a graph. `effort`: units of work for the whole curve (60); the same
        seed then gives the same curve on any machine. `time_limit_s`: seconds, which end the search
        wherever it is. `num_points`: points to look for (24). `seed`: of the random choices (0).
    budgets
        Bytes, or texts as `schedsim.plan` takes them; by default 32 budgets spread from the least
        budget to the store-all peak.
    keep, recompute
        As in `schedsim.plan`. Where ops of a graph must be recomputed, ``auto`` plans at evenly
        spaced budgets.

    Returns
    -------
    ParetoCurve
        Its `knee` is the point furthest below the chord between the ends of the curve, with budgets
        and times scaled to 0..1. Interrupting the search on a graph gives the curve found so far.

    Raises
    ------
    SchedsimError
        An option does not belong to this workload or planner, or is out of its range.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> [(point.budget_bytes, point.makespan_s) for point in schedsim.pareto(chain).points]
    [(26, 7.0), (32, 6.0)]
    """
    workload = read_workload(workload)
    rules = RecomputationRules.of(keep, recompute)
    ruled = rules.of_workload(workload)
    given: dict[str, Any] = {
        "order": order,
        "effort": effort,
        "time_limit_s": time_limit_s,
        "num_points": num_points,
        "seed": seed,
    }
    options = {name: value for name, value in given.items() if value is not None}
    check_limits(options)
    info = curve_planner(workload.kind) if planner is None else get_planner(planner)
    whole = workload.kind in info.curves
    if whole and isinstance(workload, Graph) and evicts_some(ruled):
        return _searched_at(workload, budgets, options, rules)
    takes = info.curve_options(workload.kind)
    if whole and budgets is not None:
        raise SchedsimError(f"the {info.name} chooses its budgets", hint="leave budgets= out")
    for name, value in options.items():
        if name not in takes:
            raise SchedsimError(
                f"{name}={value!r} has no meaning for {info.name} on a {workload.kind}",
                hint=f"leave {name} out: it is for the curves of graphs, found by searches",
            )
    if whole:
        curve: ParetoCurve = info.load_curve(workload.kind)(ruled, **options)
        if rules:
            curve = replace(curve, scope=str(replace(Scope.parse(curve.scope), ruled=True)))
        return curve
    asked = info.name if planner is None or isinstance(planner, str) else planner
    return _sampled(workload, info.name, asked, budgets, {"keep": keep, "recompute": recompute})


def _searched_at(
    graph: Graph,
    budgets: Iterable[int | str] | None,
    options: dict[str, Any],
    rules: RecomputationRules,
) -> ParetoCurve:
    """A curve of which something must be recomputed: a search at each of some budgets."""
    check_beside_recompute(options)
    num = options.get("num_points", _NUM_SEARCHES)
    if num < 2:
        raise SchedsimError(f"num_points {num} is not at least 2", hint="ask for both ends")
    more: dict[str, Any] = {"keep": rules.keep, "recompute": rules.recompute}
    more["effort"] = options.get("effort", _WORK) / num
    if "time_limit_s" in options:
        more["time_limit_s"] = options["time_limit_s"] / num
    more["seed"] = options.get("seed", 0)
    default = get_planner(None, graph.kind).name
    return _sampled(graph, default, default, budgets, more, num, searched=True)


def _sampled(
    workload: Chain | Graph,
    name: str,
    planner: PlannerLike,
    budgets: Iterable[int | str] | None,
    options: dict[str, Any],
    num: int = _NUM_SAMPLES,
    *,
    searched: bool = False,
) -> ParetoCurve:
    """The curve through plans at `budgets`, or at `num` of them; `searched` as of `_spread`."""
    started = time.perf_counter()
    if budgets is None:
        asked = _spread(workload, name, planner, options, num, searched=searched)
    else:
        asked = [read_budget(budget, workload) for budget in budgets]
    found: dict[int, ParetoPoint] = {}
    best_s, scopes = float("inf"), {ANY_SCHEDULE}
    for budget in sorted(set(asked)):
        plan = try_plan(workload, budget, planner, **options)
        if plan.peak_bytes is None or plan.makespan_s is None or plan.makespan_s >= best_s:
            continue
        best_s = plan.makespan_s
        scopes.add(plan.bound_scope)
        found[plan.peak_bytes] = ParetoPoint(
            plan.peak_bytes,
            best_s,
            _overhead(best_s, workload),
            plan.lower_bound_s,
            plan.status == "optimal",
            plan.schedule,
        )
    # A bound over any schedule holds over every narrower class, too.
    wide = {ANY_SCHEDULE, replace(ANY_SCHEDULE, ruled=True)}
    scope = ", ".join(sorted(map(str, scopes - wide or scopes - {ANY_SCHEDULE} or scopes)))
    return ParetoCurve(
        workload_name=workload.name,
        planner=name,
        scope=scope,
        exact=False,
        points=tuple(found[peak] for peak in sorted(found)),
        planning_s=time.perf_counter() - started,
        store_all_s=workload.store_all_s,
    )


def _spread(
    workload: Chain | Graph,
    name: str,
    planner: PlannerLike,
    options: dict[str, Any],
    num: int,
    *,
    searched: bool,
) -> list[int]:
    """Budgets at equal distances from the planner's least to the store-all peak.

    A search knows the least budget where it fails, any other planner where it has all memory.
    """
    least = try_plan(workload, 1 if searched else _NO_LIMIT, planner, **options).min_feasible_bytes
    most = simulate(workload, Schedule.store_all(workload)).peak_bytes
    if least is None:
        raise SchedsimError(f"{name} gives no range of budgets", hint="pass budgets=")
    most = max(least, most)
    return [least + (most - least) * k // (num - 1) for k in range(num)]


def _overhead(makespan_s: float, workload: Chain | Graph) -> float:
    return float(makespan_s) / workload.store_all_s - 1.0 if workload.store_all_s else 0.0
