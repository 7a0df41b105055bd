"""Schedules without copies to start from: at the budget asked for, and at larger budgets.

A schedule that fits a larger budget recomputes less; moving tensors to the host then makes it fit
the budget. Which of these budgets is best depends on the link, so the search tries several of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.dataflow.recomputation_rules import keeps_some
from schedsim.errors import UnsupportedError
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ..chains._recurrence import Table
from ..chains.bisection import bisection
from ..chains.chen import chen_greedy
from ..chains.frontier import frontier
from ..chains.periodic import periodic
from ..chains.persistent import MAX_STAGES, Problem, WorkLimitReached
from ..chains.revolve import revolve
from ..chains.rotor import rotor
from ..graphs.graph_frontier import graph_frontier
from ..graphs.local_search import local_search
from ..store_all import store_all

_NUM_BUDGETS = 24
# The exact curve of a chain: most break points kept, and points merged for a unit of effort.
_MAX_POINTS, _MERGES_PER_UNIT = 20_000_000, 2e7
_SLOTS = 400


def ladder(least_bytes: int, most_bytes: int, num: int = _NUM_BUDGETS) -> list[int]:
    """Budgets from `least_bytes` to `most_bytes`, evenly spaced, both ends included."""
    return sorted({int(b) for b in np.linspace(least_bytes, most_bytes, num)})


def chain_starts(
    chain: Chain, budget_bytes: int, effort: Effort
) -> tuple[list[Plan], list[Schedule]]:
    """(plans without copies at the budget, schedules at it and at larger budgets)."""
    everything = store_all(chain, 2**62)
    assert everything.peak_bytes is not None
    budgets = ladder(min(budget_bytes, everything.peak_bytes), everything.peak_bytes)
    if chain.num_stages > MAX_STAGES:
        if keeps_some(chain):
            raise UnsupportedError(
                f"keep is held to on chains of at most {MAX_STAGES:,} stages", hint="group stages"
            )
        planners: tuple[Callable[[Chain, int], Plan], ...]
        planners = (periodic, chen_greedy, bisection, revolve)
        plans = [planner(chain, budget_bytes) for planner in planners]
        more = [planner(chain, budget) for planner in planners for budget in budgets[1::4]]
        return plans, _schedules([*plans, everything, *more])
    problem = Problem(chain)
    table: Table | None = None
    if budget_bytes < problem.min_feasible_bytes:
        plans = [frontier(chain, budget_bytes)]  # it says which budget would be enough
        budgets = ladder(problem.min_feasible_bytes, everything.peak_bytes)
    else:
        plans = []
    try:
        work = int(_MERGES_PER_UNIT * max(effort.left, 1.0))
        table = problem.solve_exact(budgets[-1], max_points=_MAX_POINTS, max_work=work)
    except WorkLimitReached:
        unit = max(1, (budgets[-1] - problem.outside_bytes) // _SLOTS)
        table = problem.solve_slots(budgets[-1], unit, round_up=True)
        if not plans:
            plans = [rotor(chain, budget_bytes, effort=effort)]
    else:
        if not plans:
            plans = [frontier(chain, budget_bytes, max_points=_MAX_POINTS)]
    found = [problem.schedule(table, budget)[0] for budget in budgets]
    least, _ = problem.least_memory_schedule()
    schedules = [*_schedules([*plans, everything]), *(one for one in found if one is not None)]
    return plans, [*schedules, least]


def graph_starts(
    graph: Graph, budget_bytes: int, effort: Effort, seed: int, num_threads: int | None
) -> tuple[list[Plan], list[Schedule]]:
    """(plans without copies at the budget, schedules at it and at larger budgets)."""
    with effort.part(0.5) as part:
        plan = local_search(
            graph, budget_bytes, effort=part, seed=seed, gap=0.001, num_threads=num_threads
        )
    everything = Schedule.store_all(graph)
    schedules = [*_schedules([plan]), everything]
    if not effort.is_over():
        with effort.part(1.0) as part:
            curve = graph_frontier(graph, effort=part, num_points=10, seed=seed)
        schedules += [point.schedule for point in curve.points if point.schedule is not None]
    if not plan.feasible:
        schedules.sort(key=lambda one: simulate(graph, one).peak_bytes)
    return [plan], schedules


def _schedules(plans: list[Plan]) -> list[Schedule]:
    return [plan.schedule for plan in plans if plan.schedule is not None]
