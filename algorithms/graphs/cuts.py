"""Plans read off the bound: what the cuts evict is recomputed where it is needed."""

from __future__ import annotations

import math

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_search import CutSearch
from ._cut_table import Order
from .bounds import as_finite, least_memory_bytes, scope_of

_WORK = 10.0


@timed()
def cuts(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
) -> Plan:
    """The schedule that pays exactly what the bound of `time_bound_s` asks for, where that fits.

    The MILP behind the bound says what to evict at the first runs of some ops. The schedule evicts
    it there, and recomputes it where something reads it. If the schedule fits, it is proven optimal
    over all schedules in its order, or over all schedules. If it does not fit, a cut is added where
    the schedule is most over budget, and the MILP is solved again.

    This planner is no heuristic for tight budgets: it does not look at memory during recomputation.
    On training graphs at 70 % of the store-all peak and above it often ends within a second.

    Parameters
    ----------
    order
        The order over which the bound holds; first runs keep the graph's order in any case.
    time_limit_s, effort
        Limit of the solver, in all, as of `local_search`; 10 units of work by default.
    seed
        Recorded in the plan; nothing is random.

    Notes
    -----
    O(ops + tensors + reads) variables for each cut, at most ten cuts. Source: schedsim.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> plan = cuts(chain.graph, 6, order="free")
    >>> plan.makespan_s, plan.status, str(plan.bound_scope)
    (9.0, 'optimal', 'any schedule')
    """
    scope = scope_of(order)
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    given = effort.to_options()
    best: Schedule | None = Schedule.store_all(graph)
    bound_s, how = graph.store_all_s, "store-all time"
    search: CutSearch | None = None
    if simulate(graph, Schedule.store_all(graph)).peak_bytes > budget_bytes:
        best = None
        if budget_bytes < least_memory_bytes(graph)[0]:
            bound_s, how = math.inf, "one op alone needs more"
        else:
            search = CutSearch(graph, budget_bytes, order, effort)
            search.run()
            best, bound_s, how = search.best, search.bound_s, search.how
    bound_s, scope, least = as_finite(
        graph, bound_s, scope, budget_bytes, found=best is not None, search=search
    )
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="cuts",
        options={"order": order, **given},
        search=SearchRecord(bound_by=how, ended_by=effort.ended_by),
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
    )
