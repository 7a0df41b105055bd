"""The calls that most programs need: plan, compare, pareto."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .chain import Chain
from .errors import (
    InfeasibleBudgetError,
    MissingDependencyError,
    PlannerLimitError,
    PlannerSkippedWarning,
    SchedsimError,
    UnsupportedError,
)
from .graph import Graph
from .plans import Plan
from .units import format_bytes, parse_bytes

_NO_LIMIT = 2**53 - 1


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A break point of a memory/time curve: with this budget, this time; a byte less costs more."""

    budget_bytes: int
    makespan_s: float
    overhead: float


@dataclass(frozen=True)
class ParetoCurve:
    """Break points by ascending budget, of the schedules in `scope`; `exact` where proven."""

    workload_name: str
    planner: str
    scope: str
    exact: bool
    points: tuple[ParetoPoint, ...]
    planning_s: float

    def __str__(self) -> str:
        kind = "exact" if self.exact else "found"
        lines = [f"{self.workload_name}: {len(self.points)} break points ({kind}, {self.scope})"]
        lines += [
            f"  {format_bytes(point.budget_bytes):<28}{point.overhead:+.2%}"
            for point in self.points
        ]
        return "\n".join(lines)


def plan(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planner: str = "auto",
    **options: Any,
) -> Plan:
    """The plan of `planner` for `workload` within `budget_bytes`.

    Parameters
    ----------
    workload
        A chain or a graph.
    budget_bytes
        Bounds the simulated peak, static bytes included; an ``int``, or a text like ``"8GB"``.
    planner
        A name from `schedsim.algorithms.PLANNERS`.
    **options
        Passed to the planner.

    Returns
    -------
    Plan
        Feasible: its schedule has been replayed and fits.

    Raises
    ------
    InfeasibleBudgetError
        The planner finds no schedule that fits; the error carries the plan and the least budget.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> schedsim.plan(chain, 26).makespan_s
    7.0
    """
    result = try_plan(workload, budget_bytes, planner, **options)
    if not result.feasible:
        least = result.min_feasible_bytes
        raise InfeasibleBudgetError(
            f"{workload.name} does not fit {format_bytes(result.budget_bytes)} with {planner}",
            plan=result,
            hint=f"the smallest feasible budget is {format_bytes(least)}" if least else "",
        )
    return result


def try_plan(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planner: str = "auto",
    **options: Any,
) -> Plan:
    """Like `plan`, but an infeasible budget gives a plan with status ``infeasible``."""
    from .algorithms import get_planner

    info = get_planner(planner)
    if workload.kind not in info.kinds:
        raise UnsupportedError(
            f"planner {planner!r} does not take a {workload.kind}",
            hint="`schedsim planners` lists what each planner takes",
        )
    return info.load()(workload, _budget(budget_bytes), **options)


def compare(
    workload: Chain | Graph,
    budget_bytes: int | str,
    planners: Sequence[str] | None = None,
) -> list[Plan]:
    """One plan per planner, infeasible ones included, in the order given.

    By default every planner that takes the workload, but for ``auto`` and ``exhaustive``. A planner
    for which the workload is too large, or whose extra is not installed, is left out, with a
    `PlannerSkippedWarning`.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> [plan.status for plan in schedsim.compare(chain, 26, ["store_all", "rotor"])]
    ['infeasible', 'optimal']
    """
    plans = []
    for name in planners or comparable(workload):
        try:
            plans.append(try_plan(workload, budget_bytes, name))
        except (PlannerLimitError, MissingDependencyError, UnsupportedError) as error:
            warnings.warn(f"{name} left out: {error}", PlannerSkippedWarning, stacklevel=2)
    return plans


def comparable(workload: Chain | Graph) -> list[str]:
    """Names of the planners that a comparison runs by default on `workload`."""
    from .algorithms import PLANNERS

    names = (name for name, info in PLANNERS.items() if workload.kind in info.kinds)
    return [name for name in names if name not in ("auto", "exhaustive")]


def pareto(
    workload: Chain | Graph,
    planner: str = "frontier",
    *,
    budgets: Iterable[int] | None = None,
) -> ParetoCurve:
    """The memory/time curve of `planner` on `workload`.

    Parameters
    ----------
    planner
        ``"frontier"`` gives every break point of the optimal persistent schedules of a chain,
        exactly, in one run. Any other planner is asked at each of `budgets`.
    budgets
        In bytes; by default 32 budgets spread over the range from least to store-all peak.

    Examples
    --------
    >>> import schedsim
    >>> chain = schedsim.Chain.from_arrays("two", 4, forward_s=[1, 1], backward_s=[2, 2],
    ...                                    output_bytes=[4, 4], saved_bytes=[10, 10])
    >>> [(point.budget_bytes, point.makespan_s) for point in schedsim.pareto(chain).points]
    [(26, 7.0), (32, 6.0)]
    """
    started = time.perf_counter()
    if planner == "frontier" and isinstance(workload, Chain):
        from .algorithms.frontier import exact_frontier

        curve = exact_frontier(workload)
        points = [
            (int(b), float(t)) for b, t in zip(curve.budget_bytes, curve.makespan_s, strict=True)
        ]
        scope, exact = curve.scope, True
    else:
        points = _sampled(workload, planner, budgets)
        scope, exact = f"plans of {planner}", False
    return ParetoCurve(
        workload_name=workload.name,
        planner=planner,
        scope=scope,
        exact=exact,
        points=tuple(ParetoPoint(b, t, _overhead(t, workload)) for b, t in points),
        planning_s=time.perf_counter() - started,
    )


def _overhead(makespan_s: float, workload: Chain | Graph) -> float:
    return makespan_s / workload.store_all_s - 1.0 if workload.store_all_s else 0.0


def _sampled(
    workload: Chain | Graph, planner: str, budgets: Iterable[int] | None
) -> list[tuple[int, float]]:
    if budgets is None:
        whole = try_plan(workload, 2**53 - 1, planner)
        most, least = (
            try_plan(workload, 2**53 - 1, "store_all").peak_bytes,
            whole.min_feasible_bytes,
        )
        if most is None or least is None:
            raise SchedsimError(f"{planner} gives no range of budgets", hint="pass budgets=")
        budgets = [least + (most - least) * k // 31 for k in range(32)]
    found: dict[int, float] = {}
    for budget in sorted(set(budgets)):
        answer = try_plan(workload, budget, planner)
        if answer.peak_bytes is not None and answer.makespan_s is not None:
            best = min(found.values(), default=float("inf"))
            if answer.makespan_s < best:
                found[answer.peak_bytes] = answer.makespan_s
    return sorted(found.items())


def _budget(value: int | str) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchedsimError(
            f"budget {value!r} is not a number of bytes",
            hint="give an int of bytes, or a text like '8GB'",
        )
    return value
