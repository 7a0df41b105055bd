"""POET: which ops to recompute and which tensors to page out, by a MILP."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError, SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.offloading import LinkLike, Offloading
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.scope import ANY_SCHEDULE, COPIES_IN_ORDER
from schedsim.plans.search import SearchRecord
from schedsim.plans.setting import Setting
from schedsim.simulation.schedule import Schedule

from ..graphs._milp import Ints, milp_work
from ..graphs._scaling import byte_units
from ..graphs._staged_model import num_variables
from ..store_all import store_all
from ._bound import CopyBound, confirmed, copy_bound, growing_bound
from ._linked_graph import link_graph, schedule_tokens, token_names
from ._offload_search import OffloadSearch, load_kernels
from ._paging_model import build_paging_model
from .offload import CONFIRM_WORK, enough_s, offload

# Beyond this HiGHS finds nothing within minutes; a model with paging has some five times as many.
MAX_VARIABLES = 60_000
_WORK = 30.0
_BOUND_SHARE, _START_SHARE, _CUTS_SHARE, _POLISH_SHARE, _MOST_POLISH = 0.1, 0.3, 0.5, 0.02, 0.3
# HiGHS keeps its time limit up to a first node that takes so many times as long; beyond that, the
# steps between its looks at the clock are too long.
_CLOCK_LOOKS = 500.0
# Answers of programs of several cuts that are annealed beside the start: the last.
_NUM_ANSWERS = 2
# The step lasts this many units of time, beside which the solver's tolerance is small.
_UNITS = 1e4


@timed(load_kernels)
def poet(
    graph: Graph,
    budget_bytes: int,
    *,
    link: LinkLike,
    host_bytes: int | str | None = None,
    host_latency_s: float | None = None,
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    start: bool = True,
    polish: bool = True,
) -> Plan:
    """The fastest staged schedule with paging within `budget_bytes`, by integer programming.

    Runs are those of `checkmate`: a stage for each first run, in which earlier ops may run again
    once. Beside the runs, tensors flow to the host and back, over one stage or several; a stage
    lasts as long as the longer of its runs and its flows. The copies of the answer are put into a
    sequence that the engine times. The engine knows no stages, so that its time may be less or more
    than that of the MILP.

    Parameters
    ----------
    link, host_bytes, host_latency_s
        As of `offload`.
    time_limit_s, effort
        As of `local_search`; 30 units of work where neither is given. They limit the solver's
        nodes, and the planner takes the best answer by then. An effort without a
        time limit leaves out a MILP whose first node alone takes more; so do seconds that are far
        too few for the first node. The start is then annealed for as long. That is so from some 30
        ops on by default.
    seed
        Seed of the polishing, and of the start.
    start
        Start from what `offload` finds with a third of the effort, and ask the solver for better.
    polish
        Anneal the answer for a short time, as `offload` does, which removes what stages cost.

    Returns
    -------
    Plan
        The plan. Its bound is over all schedules in this order with copies, whatever their stages:
        that of `offload`, or that of several cuts of the step in one MILP, to which the next cut is
        added where the answer does not fit; answers are starts of the annealing. The status says
        ``optimal`` only where the engine's time meets it.

    Raises
    ------
    PlannerLimitError
        The graph is too large for the solver.
    SchedsimError
        `link` cannot be read, or the graph has several streams already.

    Notes
    -----
    O(ops (ops + tensors + reads)) variables. Source: Patil et al., "POET: Training Neural Networks
    on Tiny Devices with Integrated Rematerialization and Paging", ICML 2022 (arXiv 2207.07697),
    which minimises energy; see ``_paging_model.py`` for what differs.

    Examples
    --------
    >>> from schedsim import Chain
    >>> from schedsim.plans.links import Link
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> poet(chain.graph, 5, link=Link(1)).makespan_s  # 11 without paging
    8.0
    """
    offloading = Offloading.over(link, host_bytes=host_bytes, latency_s=host_latency_s)
    setting = Setting(copies=offloading)
    if not graph.one_stream:
        raise SchedsimError(
            f"{graph.name} uses several streams or pools already",
            hint="give the workload without copies; the planner adds them",
        )
    everything = store_all(graph, budget_bytes)
    if everything.feasible:
        return replace(everything, planner="poet", options={}, setting=setting)
    if num_variables(graph, 1) > MAX_VARIABLES:
        raise PlannerLimitError(
            f"{graph.name!r}: {graph.num_ops} ops need more than {MAX_VARIABLES:,} variables",
            hint="poet is for some dozens of ops; use --planner offload",
        )
    linked = link_graph(graph, budget_bytes, offloading)
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    options: dict[str, Any] = {**effort.to_options(), "start": start, "polish": polish}
    figures: dict[str, float | None] = {}
    with effort.part(_BOUND_SHARE) as part:
        bound = copy_bound(graph, linked, budget_bytes, effort=part)
    best: Schedule | None = None
    best_s, least = math.inf, LeastBudget()
    if math.isinf(bound.bound_s):
        least = LeastBudget(None, None, budget_bytes + 1, COPIES_IN_ORDER)
    elif start:
        with effort.part(_START_SHARE) as part:
            first = offload(
                graph,
                budget_bytes,
                link=(offloading.d2h, offloading.h2d),
                host_bytes=offloading.host_bytes,
                effort=part,
                seed=seed,
            )
        best, best_s = first.schedule, first.makespan_s or math.inf
        figures["start_s"] = first.makespan_s
        least = first.least
        if first.bound_scope == COPIES_IN_ORDER and first.lower_bound_s > bound.bound_s:
            bound = CopyBound(first.lower_bound_s, first.search.bound_op)
    answers: list[Ints] = []
    if not math.isinf(bound.bound_s) and best_s > enough_s(graph, bound, 0.0):
        with effort.part(_CUTS_SHARE) as part:
            bound = growing_bound(
                graph,
                linked,
                budget_bytes,
                bound,
                effort=part,
                below_s=best_s,
                starts=answers,
            )
    if not math.isinf(bound.bound_s) and best_s > enough_s(graph, bound, 0.0):
        enough = enough_s(graph, bound, 0.0)
        found, told = _solve(
            graph, budget_bytes, offloading, effort, seed, polish, (best_s, best, answers), enough
        )
        options.update(told)
        if found is not None:
            simulation = setting.simulate(graph, found, budget_bytes)
            if simulation.makespan_s < best_s:
                best, best_s = found, simulation.makespan_s
    if best is not None:
        work = CONFIRM_WORK * max(1, len(bound.cuts))
        bound = confirmed(graph, linked, budget_bytes, bound, best_s, effort=Effort(work))
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="poet",
        options=options,
        lower_bound_s=bound.bound_s if np.isfinite(bound.bound_s) else graph.store_all_s,
        bound_scope=COPIES_IN_ORDER if bound.op else ANY_SCHEDULE,
        least=least,
        seed=seed,
        setting=setting,
        search=SearchRecord(figures=figures, ended_by=effort.ended_by),
    )


def _solve(
    graph: Graph,
    budget_bytes: int,
    offloading: Offloading,
    effort: Effort,
    seed: int,
    polish: bool,
    known: tuple[float, Schedule | None, list[Ints]],
    enough: float,
) -> tuple[Schedule | None, dict[str, Any]]:
    """(schedule, what to record); `known` are seconds of a schedule, it, and other sequences."""
    best_s, best, answers = known
    arrays = graph.arrays
    linked = link_graph(graph, budget_bytes, offloading)
    sizes = (arrays.tensor_bytes, arrays.op_workspace_bytes, arrays.op_saving_workspace_bytes)
    byte_unit, whole = byte_units(np.concatenate(sizes), max(1, budget_bytes))
    room = (budget_bytes - graph.static_bytes) / byte_unit
    room = math.floor(room) if whole else room * (1 - 1e-6)
    unit_s = graph.store_all_s / _UNITS or 1.0
    model = build_paging_model(graph, linked, byte_unit, room, unit_s, linked.host_room / byte_unit)
    if math.isfinite(best_s):
        cost = np.concatenate(model.milp.columns["cost"])
        columns = np.flatnonzero(cost)
        model.milp.placed(1, (0, columns, cost[columns]), lb=0.0, ub=best_s / unit_s)
    watchdog_s = effort.watchdog_s
    most = effort.left if watchdog_s is None else _CLOCK_LOOKS * watchdog_s
    search = OffloadSearch(graph, linked, seed=seed, num_threads=1, peak_bytes=budget_bytes)
    search.enough_s = enough
    told: dict[str, Any]
    if milp_work(model.milp.num_nonzeros) > most:
        # The solver would finish its first node, whatever the effort, and look at a clock too late.
        told = {"solved": False, "milp": "its first node takes more than the effort"}
        if best is not None and polish:
            for tokens in [schedule_tokens(graph, best), *answers[-_NUM_ANSWERS:]]:
                search.consider(tokens)
            search.run(effort)
        elif watchdog_s is None:
            effort.spend(effort.left)
        else:
            effort.note_clock()
        return _found(graph, search), told
    with effort.part(1.0 - _POLISH_SHARE) as part:
        answer = model.milp.solve(part)
    told = {"solved": answer.finished}
    if answer.x is None:
        if math.isfinite(best_s):
            told["milp"] = "nothing better" if answer.infeasible else "nothing better in time"
        else:
            told["infeasible"] = "the MILP has none" if answer.infeasible else "none in time"
        return None, told
    found = model.tokens(graph, answer.x)
    cost = np.concatenate(model.milp.columns["cost"])
    told["programme_s"] = float(cost @ answer.x) * unit_s
    search.consider(np.array(found, dtype=np.int64))
    if search.best is not None:
        told["replayed_s"] = search.best[0]
    if polish:
        search.run(effort.take(_MOST_POLISH))
    return _found(graph, search), told


def _found(graph: Graph, search: OffloadSearch) -> Schedule | None:
    return None if search.best is None else Schedule.from_names(token_names(graph, search.best[1]))
