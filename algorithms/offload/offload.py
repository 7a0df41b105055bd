"""Keep, recompute or offload each tensor: the planner that trades all three for each other."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import DeadlockError, SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget, least_of
from schedsim.plans.offloading import LinkLike, Offloading
from schedsim.plans.plan import Plan, make_plan, timed, with_candidates
from schedsim.plans.scope import ANY_SCHEDULE, COPIES, COPIES_IN_ORDER, Scope
from schedsim.plans.search import SearchRecord
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ..store_all import store_all
from ._bound import BOUND_TOLERANCE, CopyBound, confirmed, copy_bound, windows_bound
from ._linked_graph import link_graph, token_names
from ._offload_search import OffloadSearch, load_kernels
from ._starts import chain_starts, graph_starts

# Units of work by default: of a workload of few ops, millions of moves find no more than thousands.
_WORK, _WORK_PER_OP = 12.0, 0.1
# Shares of the effort left: for the bound, for schedules without copies, and for the copies that
# make these schedules fit the budget.
_BOUND_SHARE, _STARTS_SHARE, _REPAIR_SHARE, _WINDOWS_SHARE = 0.15, 0.5, 0.4, 0.3
CONFIRM_WORK = 1.0
# Number of schedules that the engine is asked about, the best first, where it refuses others.
_TRIED = 8


def copies_scope(workload: Chain | Graph) -> Scope:
    """The class of schedules over which the bound holds: a chain has one order of first runs."""
    return COPIES if isinstance(workload, Chain) else COPIES_IN_ORDER


def enough_s(graph: Graph, bound: CopyBound, gap: float) -> float:
    """The makespan at which a search may stop: the bound, beside the tolerance of its solver."""
    tolerance = BOUND_TOLERANCE if bound.op else 1e-12
    return max(graph.store_all_s, bound.bound_s) * (1 + gap) * (1 + tolerance)


@timed(load_kernels)
def offload(
    workload: Chain | Graph,
    budget_bytes: int,
    *,
    link: LinkLike,
    host_bytes: int | str | None = None,
    host_latency_s: float | None = None,
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    max_moves: int | None = None,
    gap: float = 0.0,
) -> Plan:
    """The fastest schedule found that keeps, recomputes and offloads within `budget_bytes`.

    The search begins with schedules without copies: one for the budget, and others for larger
    budgets, which recompute less (of a chain from the exact curve, of a graph from local search).
    Each is brought within the budget by offloading the tensors with the longest unused time per
    time of their copies, right behind the last use and back just in time. The best are annealed:
    copies are added, removed and moved; repeated runs are dropped, and what they made is kept or
    copied; copies are replaced by repeated runs. Every neighbour is timed by the rules of the
    engine, on both links.

    The plan without copies at the same budget is always a candidate, so that the result is never
    worse than it. The engine decides on memory and time in the end.

    Parameters
    ----------
    link
        A `schedsim.plans.links.Link`, a text (``"pcie4"``, ``"25GB/s"``), or a pair of these: to
        the host, and back.
    host_bytes
        Most pinned host memory; no limit by default.
    host_latency_s
        Seconds that every copy takes additionally, for links given as a text.
    time_limit_s, effort
        As of `local_search`; 0.1 units of work an op, and at most 12, where neither is given. The
        search stops earlier where the bound is met; an interrupt gives the best plan so far.
    seed
        Seed of all random choices.
    num_threads
        Walkers that run at the same time; all cores by default.
    max_moves
        Most moves of all walkers together: they end the annealing instead of the work.
    gap
        Gap to the proven bound at which to stop.

    Returns
    -------
    Plan
        The plan's setting stores the link, so that `schedsim simulate` replays the copies. The
        bound holds for any schedule with copies of a chain, and for those in the order of first
        runs of a graph: what memory and link together cannot carry across the first run of one op
        is recomputed.

    Raises
    ------
    SchedsimError
        `link` or `host_bytes` cannot be read, or the graph has several streams already.

    Notes
    -----
    A move takes O(runs + reads). Source: the claims of Beaumont, Eyraud-Dubois & Shilova,
    "Efficient Combination of Rematerialization and Offloading for Training DNNs" (POFO, NeurIPS
    2021), by another method; the bound is our own.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> from schedsim.plans.links import Link
    >>> plan = offload(chain, 5, link=Link(1), effort=1)
    >>> plan.makespan_s, plan.status  # 13 without copies
    (8.0, 'optimal')
    """
    offloading = Offloading.over(link, host_bytes=host_bytes, latency_s=host_latency_s)
    graph = workload.graph
    if not graph.one_stream:
        raise SchedsimError(
            f"{graph.name} uses several streams or pools already",
            hint="give the workload without copies; the planner adds them",
        )
    everything = store_all(workload, budget_bytes)
    if everything.feasible:
        return replace(
            everything,
            planner="offload",
            setting=Setting(copies=offloading),
            search=SearchRecord(chosen="store_all"),
        )
    default = min(_WORK, _WORK_PER_OP * graph.num_ops)
    effort = Effort.of(effort, time_limit_s, moves=max_moves, default=default)
    given = effort.to_options()
    linked = link_graph(graph, budget_bytes, offloading)
    peak = simulate(workload, Schedule.store_all(workload)).peak_bytes
    search = OffloadSearch(
        graph, linked, seed=seed, num_threads=num_threads or os.cpu_count() or 1, peak_bytes=peak
    )
    bound = CopyBound(graph.store_all_s)
    plans: list[Plan] = []
    try:
        with effort.part(_BOUND_SHARE) as part:
            bound = copy_bound(graph, linked, budget_bytes, effort=part)
        search.enough_s = enough_s(graph, bound, gap)
        search.progress.report(bound_s=bound.bound_s)
        with effort.part(_STARTS_SHARE) as part:
            if isinstance(workload, Chain):
                plans, starts = chain_starts(workload, budget_bytes, part)
            else:
                plans, starts = graph_starts(workload, budget_bytes, part, seed, num_threads)
        if bound.bound_s != float("inf"):
            with effort.part(_REPAIR_SHARE) as part:
                search.start(starts, part)
            found = search.best
            if found is None or found[0] > search.enough_s:
                with effort.part(_WINDOWS_SHARE) as part:
                    bound = windows_bound(graph, linked, budget_bytes, bound, effort=part)
                search.enough_s = enough_s(graph, bound, gap)
                search.progress.report(bound_s=bound.bound_s)
        if bound.bound_s != float("inf"):
            search.run(effort)
            found = search.best
            if found is not None:
                bound = confirmed(
                    graph, linked, budget_bytes, bound, found[0], effort=Effort(CONFIRM_WORK)
                )
    except KeyboardInterrupt:
        effort.cancel()
    made = _finish(workload, budget_bytes, search, bound, offloading, plans, effort, seed)
    made = replace(
        made,
        options={**made.options, **given},
        search=replace(made.search, num_moves=search.moves),
    )
    return with_candidates(made, [*plans, made])


def _finish(
    workload: Chain | Graph,
    budget_bytes: int,
    search: OffloadSearch,
    bound: CopyBound,
    offloading: Offloading,
    plans: list[Plan],
    effort: Effort,
    seed: int,
) -> Plan:
    """The best plan of the search and of those without copies, after the engine's replay."""
    without = min(
        (plan for plan in plans if plan.makespan_s is not None),
        key=lambda plan: plan.makespan_s or 0.0,
        default=None,
    )
    setting = Setting(copies=offloading)
    best: Schedule | None = None if without is None else without.schedule
    best_s = float("inf") if without is None else without.makespan_s or 0.0
    chosen = "recompute" if without is not None else "offload"
    for makespan_s, excess, tokens in search.found[:_TRIED]:
        if excess or makespan_s >= best_s:
            break
        schedule = Schedule.from_names(token_names(workload.graph, tokens))
        try:
            told = setting.simulate(workload, schedule, budget_bytes)
        except DeadlockError:  # the engine decides in the end
            continue
        if told.peak_bytes <= budget_bytes and told.makespan_s < best_s:
            best, best_s, chosen = schedule, told.makespan_s, "offload"
            break
    # Only plans without copies name one: a search with copies may not find its least peak again.
    least = least_of([plan.least for plan in plans]) if best is None else LeastBudget()
    if least.scope != copies_scope(workload):
        # A proven least budget without copies is not proven with copies.
        least = LeastBudget(least.found_bytes, least.op)
    bound_s = bound.bound_s if np.isfinite(bound.bound_s) else workload.graph.store_all_s
    if not np.isfinite(bound.bound_s):
        least = replace(least, floor_bytes=budget_bytes + 1, scope=copies_scope(workload))
    return make_plan(
        workload,
        budget_bytes,
        best,
        planner="offload",
        lower_bound_s=bound_s,
        bound_scope=copies_scope(workload) if bound.op else ANY_SCHEDULE,
        least=least,
        seed=seed,
        setting=setting,
        search=SearchRecord(chosen=chosen, bound_op=bound.op or "", ended_by=effort.ended_by),
    )
