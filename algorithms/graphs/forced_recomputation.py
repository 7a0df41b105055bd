"""Graphs of which something must be recomputed, for planners that know no such rule.

An op whose output must not be kept from the forward to the backward stands twice in the graph that
these planners plan: once as it was, and once more before its first reader of the backward, which
then reads what the second op writes. Both are ops like any other, so every planner of graphs takes
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.dataflow.op import Op
from schedsim.dataflow.recomputation_rules import check_evicted, end_of_forward
from schedsim.errors import InvalidScheduleError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.scope import FIXED_ORDER
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from .bounds import as_finite, least_memory_bytes, time_bound_s

AGAIN = "~again"
"""Ends the name of the second of two such ops, and the names of what it writes."""

_BOUND_WORK = 2.0
_MOST_PLANS = 4
_MOST_TRIES = 300
_TRIED_RUNS = 2_000_000


@dataclass(frozen=True)
class DoubledGraph:
    """A graph in which every op that must run again stands twice.

    Attributes
    ----------
    graph
        The graph to plan, without rules on what is evicted.
    origin : (num_ops,) int32
        Op of the doubled graph -> op of the graph given.
    again
        The ops of the given graph that stand twice.
    """

    graph: Graph
    origin: np.ndarray[tuple[int], np.dtype[np.int32]]
    again: tuple[int, ...]

    def undoubled(self, given: Graph, schedule: Schedule) -> Schedule:
        """`schedule` of the doubled graph as a schedule of the graph `given`; O(runs)."""
        return Schedule(given.op_names, self.origin[schedule.bind(self.graph)])


def doubled(graph: Graph) -> DoubledGraph:
    """`graph` with every op that must run again in it twice; O(ops + reads).

    Examples
    --------
    >>> ops = (Op("f", writes={"x": 8}, evicted=("x",)), Op("g", reads=("x",), writes={"y": 8}),
    ...        Op("b", "backward", reads=("x", "y")))
    >>> doubled(Graph("three", ops)).graph.op_names
    ('f', 'g', 'f~again', 'b')
    """
    ops, num = graph.ops, graph.num_ops
    begin = next((i for i, op in enumerate(ops) if op.phase == "backward"), num)
    producer = {tensor: i for i, op in enumerate(ops[:begin]) for tensor in op.writes}
    place: dict[int, int] = {}  # op that runs again -> op before which it does

    def want(tensor: str, at: int) -> None:
        made = producer.get(tensor)
        if made is not None and tensor in ops[made].evicted:
            place[made] = min(place.get(made, num), at)

    for i in range(begin, num):
        for tensor in ops[i].reads:
            want(tensor, i)
    for i in range(begin - 1, -1, -1):  # an op that runs again reads what is written anew
        if i in place:
            for tensor in ops[i].reads:
                want(tensor, place[i])
    second = {tensor: f"{tensor}{AGAIN}" for i in place for tensor in ops[i].evicted}
    found: list[Op] = []
    origin: list[int] = []
    by_place: dict[int, list[int]] = {}
    for i in sorted(place):
        by_place.setdefault(place[i], []).append(i)
    for at, op in enumerate(ops):
        for i in by_place.get(at, ()):
            found.append(_second(ops[i], second))
            origin.append(i)
        own = _renamed(op, second) if at >= begin else op
        found.append(replace(own, evicted=()))
        origin.append(at)
    plain = replace(graph, ops=tuple(found), variants=(), recorded=None)
    return DoubledGraph(plain, np.array(origin, np.int32), tuple(sorted(place)))


def _renamed(op: Op, second: dict[str, str]) -> Op:
    reads = tuple(second.get(tensor, tensor) for tensor in op.reads)
    in_place = {output: second.get(source, source) for output, source in op.in_place.items()}
    return replace(op, reads=reads, in_place=in_place)


def _second(op: Op, second: dict[str, str]) -> Op:
    op = _renamed(op, second)

    def own(tensor: str) -> str:
        return f"{tensor}{AGAIN}"

    return replace(
        op,
        name=f"{op.name}{AGAIN}",
        phase="backward",
        writes={own(tensor): size for tensor, size in op.writes.items()},
        optional=tuple(own(tensor) for tensor in op.optional),
        in_place={own(output): source for output, source in op.in_place.items()},
        pools={own(tensor): pool for tensor, pool in op.pools.items()},
        evicted=(),
    )


def with_recomputed(graph: Graph, budget_bytes: int, planner: Callable[[Graph, int], Plan]) -> Plan:
    """The plan of `planner` for `graph`, of which something must be recomputed.

    Parameters
    ----------
    planner
        (graph without such rules, budget in bytes) -> plan, with first runs in the graph's order.

    Returns
    -------
    Plan
        The plan of `graph`. Its bound counts the ops that must run twice, and what the cuts of the
        graph prove of the rest. What `planner` proved of the doubled graph is no bound, because one
        run may serve for both ops.

    Notes
    -----
    Besides the planner, O(runs) for each of at most 300 repeated runs that are tried without.
    """
    split = doubled(graph)
    plan, schedule, found_bytes = _planned(graph, split, budget_bytes, planner)
    bound_s, scope, floor = as_finite(
        graph,
        _bound_s(graph, split.again, budget_bytes),
        FIXED_ORDER,
        budget_bytes,
        found=schedule is not None,
    )
    op = (plan.least.op or "").removesuffix(AGAIN) or None
    least = LeastBudget(
        found_bytes, op if found_bytes else floor.op, floor.floor_bytes, floor.scope
    )
    made = make_plan(
        graph,
        budget_bytes,
        schedule,
        planner=plan.planner,
        options=plan.options,
        lower_bound_s=bound_s,
        bound_scope=scope,
        least=least,
        seed=plan.seed,
        search=plan.search,
    )
    return replace(made, planning_s=plan.planning_s, versions=plan.versions)


def _planned(
    graph: Graph, split: DoubledGraph, budget_bytes: int, planner: Callable[[Graph, int], Plan]
) -> tuple[Plan, Schedule | None, int | None]:
    """The doubled graph's plan, its schedule as one of `graph`, and a budget that would be enough.

    A repeated op of the forward may read a tensor that the doubled graph lets it keep. Such a
    tensor is recomputed instead, and where that takes more memory, the planner is given less.
    """
    inner = budget_bytes
    for _ in range(_MOST_PLANS):
        plan = planner(split.graph, inner)
        if plan.schedule is None:
            found = plan.min_feasible_bytes
            return plan, None, found if found is not None and found > budget_bytes else None
        schedule = _repaired(graph, split.undoubled(graph, plan.schedule))
        schedule = _shortened(graph, schedule, budget_bytes)
        peak = simulate(graph, schedule).peak_bytes
        if peak <= budget_bytes:
            return plan, schedule, None
        inner -= peak - budget_bytes
        if inner <= 0:
            break
    return plan, None, peak


def _repaired(graph: Graph, schedule: Schedule) -> Schedule:
    """`schedule` with additional runs before those that read what must be recomputed."""
    producer = {t: i for i, op in enumerate(graph.ops) for t in op.evicted}
    runs = schedule.bind(graph).tolist()
    end = end_of_forward(graph, runs)
    written: set[str] = set()
    found = runs[: end + 1]

    def run(at: int) -> None:
        for tensor in graph.ops[at].reads:
            if tensor in producer and tensor not in written:
                run(producer[tensor])
        found.append(at)
        written.update(graph.ops[at].writes)

    for at in runs[end + 1 :]:
        run(at)
    return Schedule(graph.op_names, np.array(found, np.int32))


def _bound_s(graph: Graph, again: tuple[int, ...], budget_bytes: int) -> float:
    """Seconds that every schedule takes which runs the ops `again` twice.

    The sum of both runs of these ops, and of what the graph takes where these ops cost nothing.
    """
    if budget_bytes < least_memory_bytes(graph)[0]:
        return math.inf
    twice = math.fsum(2.0 * graph.ops[i].time_s for i in again)
    free = set(again)
    rest = tuple(
        replace(op, evicted=(), time_s=0.0 if i in free else op.time_s)
        for i, op in enumerate(graph.ops)
    )
    others = replace(graph, ops=rest, variants=(), recorded=None)
    return twice + time_bound_s(others, budget_bytes, effort=Effort(_BOUND_WORK))[0]


def _shortened(graph: Graph, schedule: Schedule, budget_bytes: int) -> Schedule:
    """`schedule` without the repeated runs that it does not need, the longest first."""
    most_bytes = max(budget_bytes, simulate(graph, schedule).peak_bytes)
    runs = schedule.bind(graph).copy()
    seen: set[int] = set()
    repeats = []
    for at, run in enumerate(runs.tolist()):
        if run in seen:
            repeats.append(at)
        seen.add(run)
    tries = min(_MOST_TRIES, _TRIED_RUNS // max(1, runs.size))
    repeats.sort(key=lambda at: (-graph.ops[runs[at]].time_s, at))
    kept = np.ones(runs.size, np.bool_)
    for at in repeats[:tries]:
        kept[at] = False
        fewer = Schedule(graph.op_names, runs[kept])
        try:
            check_evicted(graph, fewer)
            if simulate(graph, fewer).peak_bytes <= most_bytes:
                continue
        except InvalidScheduleError:
            pass
        kept[at] = True
    return Schedule(graph.op_names, runs[kept])
