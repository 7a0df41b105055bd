"""MOCCASIN: retention intervals, at most a few per op, by constraint programming."""

from __future__ import annotations

import math
import os
from dataclasses import replace

from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError, SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.plan import OPTIMALITY_TOLERANCE, Plan, make_plan, timed
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, Scope
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._cut_search import CutSearch
from ._cut_table import Order
from ._retention_model import RetentionModel, load_cp_model
from ._scaling import byte_divisor, whole_costs
from .bounds import as_finite, check_order, least_memory_bytes, scope_of
from .local_search import local_search

_WORK = 30.0

# The share of the effort for a schedule to start from, and that of what is left where the first
# finds none.
_START_SHARES = (0.2, 0.4)

# Links from runs to intervals for which a core builds a model in a second.
_LINKS_PER_UNIT = 40_000

# CP-SAT multiplies demands by lengths in 64 bits.
_MOST_AREA = 2**58
MAX_OPS = 3_000


def retention_scope(order: Order, num_intervals: int) -> Scope:
    """The class of schedules that the model contains."""
    if order == "free":
        return replace(ANY_SCHEDULE, most_repeats=num_intervals - 1)
    return replace(FIXED_ORDER, most_repeats=num_intervals - 1, rounds=1)


@timed()
def moccasin(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    num_intervals: int = 2,
    start: Schedule | None = None,
    num_workers: int | None = None,
) -> Plan:
    """The fastest schedule with at most `num_intervals` runs of any op, within `budget_bytes`.

    CP-SAT over retention intervals: O(ops) integer variables, memory as one `cumulative`
    constraint. In the fixed order, repeats between two first runs keep the graph's order. The
    model's bound holds over that class alone; the bound of `time_bound_s`, over all schedules in
    that order, is reported where it is the better one. The planner `cuts`, which goes with that
    bound, is asked first: where its plan fits, that plan may lie outside the class. Every answer of
    the solver is replayed.

    Parameters
    ----------
    order
        ``"fixed"``: first runs keep the graph's order. ``"free"``: they need not; this is much
        harder for the solver.
    time_limit_s, effort
        As of `local_search`; 30 units of work where neither is given, which limit the solver's
        deterministic time. The planner returns the best plan found by then.
    seed
        Seed of the solver's randomness.
    num_intervals
        C, the most runs of any op.
    start
        A schedule from which the search starts; by default one of `local_search`, which takes a
        fifth of the effort, and more where it finds none in that.
    num_workers
        Threads of the solver; by default one where work is counted, because several threads then
        wait for each other, else one for each core, at most eight.

    Raises
    ------
    SchedsimError
        `start` is in another order, or `num_intervals` is less than 1.
    MissingDependencyError
        OR-Tools is not installed.
    PlannerLimitError
        The graph has more than 3,000 ops.

    Notes
    -----
    Sizes are divided by their common divisor. Where the numbers are then still too large for the
    solver, they are rounded up for a plan and, in a second search, down for a bound. Source: Bartan
    et al., MOCCASIN, ICML 2023 (arXiv 2304.14463); links from runs to intervals replace the paper's
    reservoir constraints.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> plan = moccasin(chain.graph, 5, num_workers=1)
    >>> plan.makespan_s, plan.status
    (11.0, 'optimal')
    """
    scope = scope_of(order)
    if num_intervals < 1:
        raise SchedsimError(
            f"num_intervals {num_intervals} must be at least 1", hint="2 is the paper's choice"
        )
    load_cp_model()
    effort = Effort.of(effort, time_limit_s, default=_WORK)
    given = effort.to_options()
    if start is not None:
        check_order(graph, start, order)
    else:
        start = _found_start(graph, budget_bytes, order, seed, effort)
    best: Schedule | None = None
    best_s = math.inf
    for schedule in (Schedule.store_all(graph), start):
        if schedule is not None:
            simulation = simulate(graph, schedule)
            if simulation.peak_bytes <= budget_bytes and simulation.makespan_s < best_s:
                best, best_s = schedule, simulation.makespan_s
    bound_s = graph.store_all_s
    cuts: CutSearch | None = None
    if best_s > bound_s and budget_bytes < least_memory_bytes(graph)[0]:
        bound_s = math.inf
    elif best_s > bound_s:
        with effort.part(0.1) as part:
            cuts = CutSearch(graph, budget_bytes, order, part)
            cuts.run()
        bound_s = cuts.bound_s
        if cuts.best is not None and cuts.best_s < best_s:
            best, best_s = cuts.best, cuts.best_s
    if best_s > bound_s * (1 + OPTIMALITY_TOLERANCE) and not math.isinf(bound_s):
        if graph.num_ops > MAX_OPS:
            raise PlannerLimitError(
                f"{graph.name!r} has {graph.num_ops} ops, more than {MAX_OPS:,}",
                hint="moccasin is for some hundred ops; use a heuristic",
            )
        search = _RetentionSearch(graph, budget_bytes, order, num_intervals, seed, num_workers)
        found, proven_s = search.run(best or start, bound_s, effort)
        if found is not None:
            simulation = simulate(graph, found)
            if simulation.peak_bytes <= budget_bytes and simulation.makespan_s < best_s:
                best, best_s = found, simulation.makespan_s
        proven_s = min(proven_s, best_s)  # the best plan may come from outside the class
        if proven_s > bound_s * (1 + OPTIMALITY_TOLERANCE):
            bound_s, scope = proven_s, retention_scope(order, num_intervals)
    bound_s, scope, least = as_finite(
        graph, bound_s, scope, budget_bytes, found=best is not None, search=cuts
    )
    options = {"order": order, **given, "num_intervals": num_intervals}
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="moccasin",
        options=options,
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
        search=SearchRecord(ended_by=effort.ended_by),
    )


def _found_start(
    graph: Graph, budget_bytes: int, order: Order, seed: int, effort: Effort
) -> Schedule | None:
    """A schedule that fits, from parts of `effort`; the solver rarely finds a first one itself."""
    for share in _START_SHARES:
        with effort.part(share) as part:
            plan = local_search(graph, budget_bytes, order=order, effort=part, seed=seed)
        if plan.schedule is not None or plan.proven_infeasible:
            return plan.schedule
    return None


class _RetentionSearch:
    """Solutions of the model: one where sizes are exact, else one rounded up and one down."""

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        order: Order,
        num_intervals: int,
        seed: int,
        num_workers: int | None,
    ) -> None:
        self.graph, self.order = graph, order
        self.num_intervals, self.seed = num_intervals, seed
        self.num_workers = num_workers
        self.built = 0.0  # seconds that the last model took to build, where seconds are the limit
        self.costs, self.unit_s = whole_costs(graph.arrays.op_time_s)
        # Each repeat may have been rounded down by a unit.
        exact = math.fsum(self.costs) * self.unit_s == graph.store_all_s
        self.num_rounded = 0 if exact else graph.num_ops * num_intervals
        arrays = graph.arrays
        self.tables = [
            arrays.tensor_bytes.tolist(),
            arrays.op_workspace_bytes.tolist(),
            arrays.op_saving_workspace_bytes.tolist(),
        ]
        self.room = budget_bytes - graph.static_bytes
        self.divisor = byte_divisor(size for table in self.tables for size in table)
        horizon = graph.num_ops * (graph.num_ops + 1)
        most = max(1, _MOST_AREA // (horizon * max(1, arrays.tensor_bytes.size)))
        self.exact = self.room // self.divisor <= most
        if not self.exact:
            self.divisor = -(-self.room // most)

    def run(
        self, start: Schedule | None, bound_s: float, effort: Effort
    ) -> tuple[Schedule | None, float]:
        """(schedule, bound in seconds over the model's class)."""
        num_reads = self.graph.arrays.read_tensor.size
        num_links = self.num_intervals * (self.graph.num_ops + self.num_intervals * num_reads)
        least = 2 * num_links / _LINKS_PER_UNIT  # to build the model, and to begin to solve it
        if not effort.counted and not effort.allows(least):
            return None, bound_s
        if self.exact:
            with effort.part(1.0) as part:
                return self.solve(start, bound_s, part, round_up=False)
        with effort.part(0.6) as part:
            found, _ = self.solve(start, bound_s, part, round_up=True)
        if not effort.counted and not effort.allows(max(least, 1.3 * self.built)):
            return found, bound_s
        with effort.part(1.0) as part:
            other, proven_s = self.solve(found or start, bound_s, part, round_up=False)
        if other is not None and simulate(self.graph, other).peak_bytes <= self.budget_bytes:
            found = other
        return found, proven_s

    @property
    def budget_bytes(self) -> int:
        return self.room + self.graph.static_bytes

    def solve(
        self, start: Schedule | None, bound_s: float, effort: Effort, *, round_up: bool
    ) -> tuple[Schedule | None, float]:
        left = effort.left
        up = self.divisor - 1 if round_up else 0
        tensors, workspaces, saving = (
            [(size + up) // self.divisor for size in table] for table in self.tables
        )
        retention = RetentionModel(
            self.graph,
            sizes=tensors,
            workspaces=workspaces,
            saving_workspaces=saving,
            room=self.room // self.divisor,
            costs=self.costs,
            num_intervals=self.num_intervals,
            order=self.order,
        )
        store_all_s = self.graph.store_all_s
        # Costs are whole, so that a bound may be rounded up, but for the error of sums of floats.
        error = 1e-6 + 1e-12 * store_all_s / self.unit_s + self.num_rounded
        at_least = math.ceil((bound_s - store_all_s) / self.unit_s - error)
        retention.model.add(retention.extra >= max(0, at_least))
        if start is not None:
            retention.hint(start.bind(self.graph).tolist())
        cp = retention.cp
        solver = cp.CpSolver()
        parameters = solver.parameters
        if effort.watchdog_s is not None:
            limit_s = effort.watchdog_s
            if not effort.counted:
                # The solver looks at its limit late, by about half as long as the model took.
                self.built = left - effort.left
                limit_s -= 0.5 * self.built
            parameters.max_time_in_seconds = max(0.01, limit_s)
        if effort.counted:
            # Several workers take turns: which of them is first then does not depend on chance.
            parameters.max_deterministic_time = max(0.01, effort.left)
            parameters.num_workers = self.num_workers or 1
            parameters.interleave_search = parameters.num_workers > 1
        else:
            parameters.num_workers = self.num_workers or min(8, os.cpu_count() or 1)
        parameters.random_seed = self.seed % 2**31
        status = solver.solve(retention.model)
        effort.spend(solver.response_proto.deterministic_time)
        finished = status in (cp.OPTIMAL, cp.INFEASIBLE)
        if effort.counted:
            finished = finished or not effort.left > 0.01 * effort.work
        elif parameters.num_workers > 1:
            finished = False  # another worker may find it first the next time
        if not finished:
            effort.note_clock()
        if status == cp.INFEASIBLE:
            return None, math.inf
        proven_s = store_all_s + max(0.0, solver.best_objective_bound) * self.unit_s
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return None, proven_s
        return Schedule(self.graph.op_names, retention.runs(solver.value)), proven_s
