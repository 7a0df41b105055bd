"""Plans read off the bound: what the cuts evict is recomputed where it is needed, and repaired."""

from __future__ import annotations

import math
from dataclasses import replace

from schedsim.dataflow.graph import Graph
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_search import CutSearch
from ._cut_table import Order
from ._repaired_cuts import RepairedCuts
from .bounds import as_finite, least_memory_bytes, scope_of

_WORK = 10.0
# The share of the effort that the bound and its schedules may take; the repair has the rest.
_BOUND_SHARE = 0.5


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

    Cuts do not see all memory during recomputation: within little memory their schedules rarely
    fit. With half of the effort, and what the bound has left, the closest of them is
    annealed as by `local_search` until it fits, beside the graph's own order. On training graphs at
    70 % of the store-all peak and above that is often not needed, and the planner ends within a
    second.

    Parameters
    ----------
    order
        The order over which the bound holds; first runs keep the graph's order in any case.
    time_limit_s, effort
        Limit of the solver, in all, as of `local_search`; 10 units of work by default.
    seed
        Seed of the annealing; the cuts are not random.

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
    repaired = RepairedCuts(graph, budget_bytes, seed)
    if simulate(graph, Schedule.store_all(graph)).peak_bytes > budget_bytes:
        best = None
        if budget_bytes < least_memory_bytes(graph)[0]:
            bound_s, how = math.inf, "one op alone needs more"
        else:
            with effort.part(_BOUND_SHARE) as part:
                search = CutSearch(graph, budget_bytes, order, part)
                search.run()
            best, bound_s, how = search.best, search.bound_s, search.how
            if not search.is_done():
                found = repaired.run(search.suggested, bound_s * (1 + 1e-12), effort)
                best = _faster(graph, best, found)
    lean = None if best is not None else repaired.lean(effort)
    if lean is not None and lean.peak_bytes <= budget_bytes:
        best, lean = lean.schedule, None
    bound_s, scope, least = as_finite(
        graph, bound_s, scope, budget_bytes, found=best is not None, search=search
    )
    if lean is not None:
        least = replace(least, found_bytes=lean.peak_bytes, op=lean.peak_op)
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="cuts",
        options={"order": order, **given},
        search=SearchRecord(
            num_moves=repaired.moves or None, bound_by=how, ended_by=effort.ended_by
        ),
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
    )


def _faster(graph: Graph, one: Schedule | None, other: Schedule | None) -> Schedule | None:
    known = [schedule for schedule in (one, other) if schedule is not None]
    return min(known, key=lambda schedule: simulate(graph, schedule).makespan_s, default=None)
