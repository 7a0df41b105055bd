"""The calls that most programs need: plan and compare."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
    if isinstance(workload, Graph) and not workload.one_queue:
        raise UnsupportedError(
            f"{workload.name} has several queues or memory pools: it can be simulated, not planned",
            hint="planners that offload take the graph without copies, and add them",
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


def _budget(value: int | str) -> int:
    if isinstance(value, str):
        return parse_bytes(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchedsimError(
            f"budget {value!r} is not a number of bytes",
            hint="give an int of bytes, or a text like '8GB'",
        )
    return value
