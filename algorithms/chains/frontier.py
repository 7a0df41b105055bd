"""The whole exact memory/time curve of a chain, in one run, on true bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.variants import check_allowed
from schedsim.plans.curves import ParetoCurve, ParetoPoint
from schedsim.plans.plan import Plan, timed
from schedsim.plans.scope import PERSISTENT, Scope

from .persistent import Problem, exact_plan, infeasible_plan

MAX_POINTS = 60_000_000
"""Most break points kept over all sub-chains, 16 bytes each."""

MAX_WORK = 4_000_000_000
"""Most points merged: about half a minute."""


@dataclass(frozen=True)
class ExactFrontier:
    """Every break point of the optimal persistent schedules of a chain.

    Attributes
    ----------
    budget_bytes : (num_points,) int64
        Ascending; static bytes included. The first is the least feasible budget.
    makespan_s : (num_points,) float64
        Descending; the least time at ``budget_bytes[i]``. One byte less costs more time.
    scope : Scope
    """

    budget_bytes: NDArray[np.int64]
    makespan_s: NDArray[np.float64]
    scope: Scope = PERSISTENT


def exact_frontier(
    chain: Chain,
    *,
    max_points: int = MAX_POINTS,
    max_work: int = MAX_WORK,
    allow: Collection[str] = (),
) -> ExactFrontier:
    """The exact memory/time curve of the persistent schedules of `chain`.

    The recurrence of `schedsim.algorithms.chains.persistent` is solved over step functions of
    memory instead of slots: the sum of two step functions, shifted, and the lower envelope of all
    such sums, on whole bytes.

    Raises
    ------
    WorkLimitReached
        The curves have more break points than the limits allow.

    Notes
    -----
    O(rows * L * P) time, O(rows * P) memory, with `rows` distinct sub-chains (at most L^2 / 2) of
    P break points each.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> curve = exact_frontier(chain)
    >>> curve.budget_bytes.tolist(), curve.makespan_s.tolist()
    ([5, 6, 7], [13.0, 10.0, 8.0])
    """
    problem = Problem(chain, check_allowed(allow))
    table = problem.solve_exact(2**62, max_points=max_points, max_work=max_work)
    row = int(problem.row_of[0, -1])
    points = slice(int(table.start[row]), int(table.start[row] + table.count[row]))
    memory = table.memory[points] + problem.outside_bytes
    return ExactFrontier(memory, table.values[points].copy(), problem.scope)


@timed()
def frontier(
    chain: Chain,
    budget_bytes: int,
    *,
    max_points: int = MAX_POINTS,
    max_work: int = MAX_WORK,
    allow: Collection[str] = (),
) -> Plan:
    """The optimal persistent schedule within `budget_bytes`, from the exact curve up to it.

    Parameters
    ----------
    max_points, max_work
        Limits on break points kept and points merged.
    allow
        Kinds of variants that may be chosen, of `schedsim.dataflow.variants.VARIANT_KINDS`.

    Raises
    ------
    WorkLimitReached
        A limit was passed; `rotor` then gives a plan with a proven gap.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> frontier(chain, 6).makespan_s
    10.0
    """
    problem = Problem(chain, check_allowed(allow))
    if budget_bytes < problem.min_feasible_bytes:
        return infeasible_plan(problem, budget_bytes, planner="frontier")
    table = problem.solve_exact(budget_bytes, max_points=max_points, max_work=max_work)
    return exact_plan(problem, table, budget_bytes, planner="frontier")


@timed()
def frontier_curve(chain: Chain) -> ParetoCurve:
    """The exact curve of `chain` as `schedsim.pareto` gives it: all points, each proven optimal.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> [point.budget_bytes for point in frontier_curve(chain).points]
    [5, 6, 7]
    """
    curve = exact_frontier(chain)
    store_all_s = chain.store_all_s
    points = tuple(
        ParetoPoint(
            int(budget),
            float(time_s),
            float(time_s) / store_all_s - 1.0 if store_all_s else 0.0,
            float(time_s),
            True,
        )
        for budget, time_s in zip(curve.budget_bytes, curve.makespan_s, strict=True)
    )
    return ParetoCurve(
        workload_name=chain.name,
        planner="frontier",
        scope=str(curve.scope),
        exact=True,
        points=points,
        planning_s=0.0,
        store_all_s=store_all_s,
        least_memory_bytes=points[0].budget_bytes,
    )
