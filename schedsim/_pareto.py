"""The memory/time curve of a workload, whoever plans it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Literal

from .api import try_plan
from .dataflow.chain import Chain
from .dataflow.graph import Graph
from .errors import SchedsimError
from .plans.curves import ParetoCurve, ParetoPoint
from .plans.plan import ANY_SCHEDULE

_NO_LIMIT = 2**53 - 1
_NUM_SAMPLES = 32


def pareto(
    workload: Chain | Graph,
    planner: str = "frontier",
    *,
    order: Literal["fixed", "free"] | None = None,
    time_limit_s: float | None = None,
    num_points: int | None = None,
    seed: int | None = None,
    budgets: Iterable[int] | None = None,
) -> ParetoCurve:
    """The memory/time curve of `planner` on `workload`, its knee marked.

    Parameters
    ----------
    planner
        ``"frontier"`` gives every break point of the optimal persistent schedules of a chain,
        exactly, in one run. On a graph it searches at budgets chosen as the curve appears, and
        proves a bound beside it: see `schedsim.algorithms.graphs.graph_frontier`. Any
        other planner is asked at each of `budgets`.
    order
        Of the first runs of a graph: ``"fixed"`` (default) or ``"free"``.
    time_limit_s, num_points, seed
        Of the search on a graph: seconds for the whole curve (30), points to look for (24), and
        of its random choices (0).
    budgets
        In bytes; by default 32 budgets spread over the range from least to store-all peak.

    Returns
    -------
    ParetoCurve
        `knee` is the point furthest below the chord between the ends of the curve, budgets and
        times scaled to 0..1 between them. Interrupting the search on a graph gives the curve so
        far.

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
    given: dict[str, Any] = {
        "order": order,
        "time_limit_s": time_limit_s,
        "num_points": num_points,
        "seed": seed,
    }
    options = {name: value for name, value in given.items() if value is not None}
    adaptive = planner == "frontier"
    if adaptive and budgets is not None:
        raise SchedsimError("the frontier chooses its budgets", hint="leave budgets= out")
    if adaptive and isinstance(workload, Graph):
        from .algorithms.graphs.graph_frontier import graph_frontier

        return graph_frontier(workload, **options)
    if options:
        name, value = next(iter(options.items()))
        raise SchedsimError(
            f"{name}={value!r} has no meaning for {planner} on a {workload.kind}",
            hint=f"leave {name} out: it is for the curves of graphs, by 'frontier'",
        )
    if adaptive and isinstance(workload, Chain):
        return _exact(workload)
    return _sampled(workload, planner, budgets)


def _exact(chain: Chain) -> ParetoCurve:
    from .algorithms.chains.frontier import exact_frontier

    started = time.perf_counter()
    curve = exact_frontier(chain)
    points = tuple(
        ParetoPoint(int(budget), float(time_s), _overhead(time_s, chain), float(time_s), True)
        for budget, time_s in zip(curve.budget_bytes, curve.makespan_s, strict=True)
    )
    return ParetoCurve(
        workload_name=chain.name,
        planner="frontier",
        scope=curve.scope,
        exact=True,
        points=points,
        planning_s=time.perf_counter() - started,
        store_all_s=chain.store_all_s,
        least_memory_bytes=points[0].budget_bytes,
    )


def _sampled(workload: Chain | Graph, planner: str, budgets: Iterable[int] | None) -> ParetoCurve:
    started = time.perf_counter()
    found: dict[int, ParetoPoint] = {}
    best_s, scopes = float("inf"), {ANY_SCHEDULE}
    for budget in sorted(set(_spread(workload, planner) if budgets is None else budgets)):
        plan = try_plan(workload, budget, planner)
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
    # A bound over any schedule is one over fewer, too.
    scope = ", ".join(sorted(scopes - {ANY_SCHEDULE})) or ANY_SCHEDULE
    return ParetoCurve(
        workload_name=workload.name,
        planner=planner,
        scope=scope,
        exact=False,
        points=tuple(found[peak] for peak in sorted(found)),
        planning_s=time.perf_counter() - started,
        store_all_s=workload.store_all_s,
    )


def _spread(workload: Chain | Graph, planner: str) -> list[int]:
    """Budgets at equal distances from the planner's least to the store-all peak."""
    least = try_plan(workload, _NO_LIMIT, planner).min_feasible_bytes
    most = try_plan(workload, _NO_LIMIT, "store_all").peak_bytes
    if most is None or least is None:
        raise SchedsimError(f"{planner} gives no range of budgets", hint="pass budgets=")
    last = _NUM_SAMPLES - 1
    return [least + (most - least) * k // last for k in range(_NUM_SAMPLES)]


def _overhead(makespan_s: float, workload: Chain | Graph) -> float:
    return float(makespan_s) / workload.store_all_s - 1.0 if workload.store_all_s else 0.0
