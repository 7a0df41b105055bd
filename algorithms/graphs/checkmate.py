"""Checkmate: which ops to recompute in which stage, as a mixed-integer linear program (MILP)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError, SchedsimError, UnsupportedError
from schedsim.plans.effort import Effort
from schedsim.plans.plan import OPTIMALITY_TOLERANCE, Plan, make_plan, timed
from schedsim.plans.scope import FIXED_ORDER, Scope
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._cut_search import CutSearch
from ._milp import Answer, Floats, Milp, milp_work
from ._repaired_cuts import RepairedCuts
from ._scaling import byte_units, solver_times
from ._staged_model import StagedModel, build_model, num_variables
from .bounds import as_finite, check_order, least_memory_bytes, scope_of

# Beyond this HiGHS does not solve even the relaxation within minutes.
MAX_VARIABLES = 1_000_000
# Only with a plan whose extra time is within this factor of the bound is a better one asked for.
_NEAR = 1.25


def staged_scope(passes: int) -> Scope:
    """The class of schedules that the MILP contains."""
    return replace(FIXED_ORDER, rounds=passes)


_WORK = 30.0
# HiGHS reads a model and simplifies it before it looks at its limit: so many times as long as the
# model took to build.
_LATE = 8.0


@timed()
def checkmate(
    graph: Graph,
    budget_bytes: int,
    *,
    order: str = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    passes: int = 1,
    start: Schedule | None = None,
) -> Plan:
    """The fastest staged schedule within `budget_bytes`, by mixed-integer programming.

    First runs keep the graph's order. Before each of them every earlier op may run again at most
    `passes` times, in rounds that keep the graph's order, too; within that class a plan called
    optimal is proven optimal. The class does not contain all schedules with that order of first
    runs: between two first runs it may pay to repeat ops in another order, or an op twice. The
    bound of `time_bound_s` holds over that wider class, and is reported where it is the better one;
    the planner `cuts`, which goes with that bound, is asked first.

    The linear relaxation comes first. Its answer is rounded as Checkmate's two-phase rounding does
    (what is kept, by several thresholds; then the runs that this needs). If the rounded schedule
    does not meet the bound, the MILP is solved in whole numbers, asking for better than the best
    plan so far. Every answer of the solver is rounded and replayed.

    Parameters
    ----------
    order
        Only ``"fixed"``.
    time_limit_s, effort
        As of `local_search`, for the solver in all; 30 units of work where neither is given, which
        limit its nodes. The planner returns the best plan found by then. An effort without a time
        limit leaves out an MILP whose first node alone takes more.
    seed
        Recorded in the plan; HiGHS is deterministic.
    passes
        Rounds of repeats before each first run.
    start
        A schedule to beat, whose first runs keep the graph's order.

    Returns
    -------
    Plan
        ``infeasible`` where no schedule was found; the plan says whether that is proven, and at
        which budget there is a schedule.

    Raises
    ------
    SchedsimError
        `start` is in another order, or `passes` is less than 1.
    UnsupportedError
        Another order was asked for, or the graph uses several streams or pools.
    PlannerLimitError
        The MILP would have more than a million variables.

    Notes
    -----
    O(passes ops (ops + tensors + reads)) variables. Source: Jain et al., Checkmate, MLSys 2020
    (arXiv 1910.02653), equations 1 to 9 and section 5; see ``_staged_model.py`` for what differs.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> plan = checkmate(chain.graph, 5)
    >>> plan.makespan_s, plan.status
    (11.0, 'optimal')
    """
    scope_of(order)  # type: ignore[arg-type]
    if order != "fixed":
        raise UnsupportedError(
            "checkmate keeps the order of first runs", hint="use order='fixed', or moccasin"
        )
    if passes < 1:
        raise SchedsimError(f"passes {passes} must be at least 1", hint="1 is Checkmate's form")
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    given = effort.to_options()
    search = _StagedSearch(graph, budget_bytes, effort)
    search.consider(Schedule.store_all(graph))
    if start is not None:
        check_order(graph, start, "fixed")
        search.consider(start)
    if not search.is_proven():
        search.cut(0.1)
    if not search.is_proven():
        if num_variables(graph, passes) > MAX_VARIABLES:
            raise PlannerLimitError(
                f"{graph.name!r}: {graph.num_ops} ops need more than {MAX_VARIABLES:,} variables",
                hint="checkmate is for some hundred ops; use a heuristic",
            )
        search.solve(passes)
    lean: Simulation | None = None
    if search.best is None and math.isfinite(search.bound_s):
        lean = RepairedCuts(graph, budget_bytes, seed).lean(effort)
        search.consider(lean.schedule)
    bound_s, scope, least = as_finite(
        graph,
        search.bound_s,
        search.scope,
        budget_bytes,
        found=search.best is not None,
        search=search.cuts,
    )
    if lean is not None and search.best is None:
        least = replace(least, found_bytes=lean.peak_bytes, op=lean.peak_op)
    return make_plan(
        graph,
        budget_bytes,
        search.best,
        planner="checkmate",
        options={"order": order, **given, "passes": passes},
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
        search=SearchRecord(ended_by=effort.ended_by),
    )


class _StagedSearch:
    """The best schedule and the best bound so far."""

    def __init__(self, graph: Graph, budget_bytes: int, effort: Effort) -> None:
        self.graph, self.budget_bytes, self.effort = graph, budget_bytes, effort
        self.times = solver_times(graph.arrays.op_time_s)
        self.best: Schedule | None = None
        self.best_s = math.inf
        self.bound_s, self.scope = graph.store_all_s, FIXED_ORDER
        self.cuts: CutSearch | None = None

    def is_proven(self) -> bool:
        """Whether nothing better is possible."""
        return self.best_s <= self.bound_s * (1 + OPTIMALITY_TOLERANCE) or math.isinf(self.bound_s)

    def consider(self, schedule: Schedule) -> bool:
        """Keep `schedule` if it fits and is faster; returns whether it fits."""
        simulation = simulate(self.graph, schedule)
        fits = simulation.peak_bytes <= self.budget_bytes
        if fits and simulation.makespan_s < self.best_s:
            self.best, self.best_s = schedule, simulation.makespan_s
        return fits

    def widen_bound(self, bound_s: float, scope: Scope = FIXED_ORDER) -> None:
        if bound_s > self.bound_s:
            self.bound_s, self.scope = bound_s, scope

    def cut(self, share: float) -> None:
        """Find the bound of `time_bound_s` and its schedule, with a share of the effort."""
        if self.budget_bytes < least_memory_bytes(self.graph)[0]:
            self.widen_bound(math.inf)
            return
        with self.effort.part(share) as part:
            self.cuts = CutSearch(self.graph, self.budget_bytes, "fixed", part)
            self.cuts.run()
        self.widen_bound(self.cuts.bound_s)
        if self.cuts.best is not None:
            self.consider(self.cuts.best)

    def solve(self, passes: int) -> None:
        """Solve the relaxation, round it, then solve the MILP in whole numbers."""
        scope = staged_scope(passes)
        arrays = self.graph.arrays
        sizes = (arrays.tensor_bytes, arrays.op_workspace_bytes, arrays.op_saving_workspace_bytes)
        byte_unit, whole = byte_units(np.concatenate(sizes), self.budget_bytes)
        room = (self.budget_bytes - self.graph.static_bytes) / byte_unit
        room = math.floor(room) if whole else room
        left = self.effort.left
        model = build_model(self.graph, room, byte_unit, self.times.costs, passes=passes)
        late_s = 0.0 if self.effort.counted else _LATE * (left - self.effort.left)
        if not self.effort.allows(late_s):
            return
        with self.effort.part(0.4) as part:
            answer = model.milp.solve(part, integral=False)
        self.learn(answer, scope)
        if answer.x is not None:
            for schedule in rounded(self.graph, model, answer.x):
                self.consider(schedule)
        if self.is_proven() or self.effort.is_over():
            return
        left = self.effort.left
        if not self.effort.allows(late_s):
            return
        if (
            self.effort.counted
            and self.effort.watchdog_s is None
            and milp_work(model.milp.num_nonzeros) > left
        ):
            # The solver would finish its first node, which takes more than is left, and nothing
            # stops it.
            self.effort.spend(left)
            return
        self.aim(model.milp)
        with self.effort.part(max(0.05, 1 - late_s / left)) as part:
            answer = model.milp.solve(part)
        if answer.infeasible and self.best is not None:  # only where better than it was asked for
            # No plan beats the best one by a whole unit, or by more than a tolerance.
            self.widen_bound(self.best_s, scope)
        else:
            self.learn(answer, scope)
        if answer.x is not None:
            fits = self.consider(Schedule(self.graph.op_names, model.runs(answer.x)))
            if not fits and not self.effort.is_over():
                # Over budget by less than the solver's tolerance: ask for a little less memory.
                model = build_model(
                    self.graph, room * (1 - 1e-5), byte_unit, self.times.costs, passes=passes
                )
                with self.effort.part(1.0) as part:
                    answer = model.milp.solve(part)
                if answer.x is not None:
                    self.consider(Schedule(self.graph.op_names, model.runs(answer.x)))

    def aim(self, milp: Milp) -> None:
        """Tell the solver the bound, and to beat the best plan if that plan is good.

        Asked to beat a poor plan, HiGHS finds its way to good ones later, not earlier.
        """
        cost = np.concatenate(milp.columns["cost"])
        columns = np.flatnonzero(cost)
        store_all_s, unit_s = self.graph.store_all_s, self.times.unit_s
        at_least = (self.bound_s - store_all_s) / unit_s if math.isfinite(self.bound_s) else 0.0
        at_most = math.inf
        extra_s, bound_s = self.best_s - store_all_s, self.bound_s - store_all_s
        if self.best is not None and extra_s <= _NEAR * bound_s:
            at_most = extra_s / unit_s
            at_most -= 0.5 if self.times.whole else 1e-9 * at_most
        milp.placed(1, (0, columns, cost[columns]), lb=at_least - 1e-4, ub=at_most)

    def learn(self, answer: Answer, scope: Scope) -> None:
        if answer.infeasible:
            # The best plan may come from outside the class; then no plan within the class is
            # better.
            self.widen_bound(math.inf if self.best is None else self.best_s, scope)
        else:
            self.widen_bound(self.graph.store_all_s + self.times.bound_s(answer.bound), scope)


def rounded(graph: Graph, model: StagedModel, x: Floats) -> Iterator[Schedule]:
    """Two-phase rounding: thresholds say what is kept between stages; then the runs it takes."""
    kept = [np.where(columns >= 0, x[np.maximum(columns, 0)], 0.0) for columns in model.kept]
    for threshold in (0.5, 0.999, 0.9, 0.75, 0.25, 0.1, 0.001):
        runs = _runs_for(graph, model, [values >= threshold for values in kept])
        if runs is not None:
            yield Schedule(graph.op_names, runs)


def _runs_for(graph: Graph, model: StagedModel, kept: list[NDArray[np.bool_]]) -> list[int] | None:
    """The fewest runs that leave what is `kept` at every border; ``None`` if impossible."""
    arrays = graph.arrays
    runs: list[int] = []
    alive: Any = arrays.tensor_producer < 0
    for s, op_first in enumerate(model.stage_first_op):
        wanted = set(np.flatnonzero(kept[s + 1] & ~alive).tolist())
        stage = []
        for op in range(model.stage_num_turns[s] - 1, -1, -1):
            writes = arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]
            if op != op_first and not wanted.intersection(writes.tolist()):
                continue
            if op != op_first and arrays.op_once[op]:
                return None
            stage.append(op)
            wanted.difference_update(writes.tolist())
            reads = arrays.read_tensor[arrays.read_start[op] : arrays.read_start[op + 1]]
            wanted.update(reads[~alive[reads]].tolist())
        if wanted:
            return None  # a graph input was evicted
        runs += stage[::-1]
        made = np.zeros_like(alive)
        for op in stage:
            made[arrays.write_tensor[arrays.write_start[op] : arrays.write_start[op + 1]]] = True
        alive = (alive | made) & (kept[s + 1] | (arrays.tensor_producer < 0))
    return runs
