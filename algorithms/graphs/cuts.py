"""Plans read off the bound: what the cuts let go is made again when it is needed."""

from __future__ import annotations

import math
import time

from schedsim.dataflow.graph import Graph
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_search import CutSearch
from ._cuts import Order
from .bounds import as_finite, least_memory_bytes, scope_of


def cuts(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> Plan:
    """The schedule that pays just what the bound of `time_bound_s` asks for, where that fits.

    The programme behind the bound says what to let go at the first runs of some ops. The schedule
    lets it go there, and makes it again when something reads it. If it fits, it is proven optimal,
    over all schedules in its order, or over all at all. If not, a cut is added where it is most
    over budget, and the programme is solved again.

    This is no heuristic for tight budgets: while tensors are made again, memory is not looked at.
    On training graphs at 70 % of the store-all peak and above it often ends within a second.

    Parameters
    ----------
    order
        What the bound speaks of; first runs keep the graph's order in any case.
    time_limit_s
        Of the solver, in all.
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
    >>> plan.makespan_s, plan.status, plan.bound_scope
    (9.0, 'optimal', 'any schedule')
    """
    started = time.perf_counter()
    scope = scope_of(order)
    best: Schedule | None = Schedule.store_all(graph)
    bound_s, how = graph.store_all_s, "store-all time"
    if simulate(graph, Schedule.store_all(graph)).peak_bytes > budget_bytes:
        best = None
        if budget_bytes < least_memory_bytes(graph)[0]:
            bound_s, how = math.inf, "one op alone needs more"
        else:
            search = CutSearch(graph, budget_bytes, order, started + time_limit_s)
            search.run()
            best, bound_s, how = search.best, search.bound_s, search.how
    bound_s, scope, least = as_finite(graph, bound_s, scope, budget_bytes, best is not None)
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="cuts",
        started=started,
        options={"order": order, "time_limit_s": time_limit_s},
        search=SearchRecord(bound_by=how),
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
    )
