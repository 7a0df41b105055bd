"""Plans read off the bound: what the cuts evict is recomputed when it is needed."""

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
    """The schedule that pays just what the bound of `time_bound_s` asks for, where that fits.

    The MILP behind the bound says what to evict at the first runs of some ops. The schedule
    evicts it there, and recomputes it when something reads it. If it fits, it is proven optimal,
    over all schedules in its order, or over all at all. If not, a cut is added where it is most
    over budget, and the MILP is solved again.

    This is no heuristic for tight budgets: while tensors are recomputed, memory is not looked at.
    On training graphs at 70 % of the store-all peak and above it often ends within a second.

    Parameters
    ----------
    order
        What the bound speaks of; first runs keep the graph's order in any case.
    time_limit_s, effort
        Of the solver, in all, as of `local_search`; 10 units of work by default.
    seed
        Recorded; nothing is random.

    Notes
    -----
    O(ops + tensors + reads) variables per cut, ten cuts at most. Source: schedsim.

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
    if simulate(graph, Schedule.store_all(graph)).peak_bytes > budget_bytes:
        best = None
        if budget_bytes < least_memory_bytes(graph)[0]:
            bound_s, how = math.inf, "one op alone needs more"
        else:
            search = CutSearch(graph, budget_bytes, order, effort)
            search.run()
            best, bound_s, how = search.best, search.bound_s, search.how
    bound_s, scope, least = as_finite(graph, bound_s, scope, budget_bytes, best is not None)
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
