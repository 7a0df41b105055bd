"""Large graphs by their repeated blocks: options of each kind of block, then the line of blocks."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

from schedsim.dataflow.graph import Graph
from schedsim.files.workload_files import workload_hash
from schedsim.plans.plan import Plan, make_plan
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._block_line import SolvedLine
from ._blocks import find_blocks
from ._cuts import Order
from .bounds import scope_of
from .local_search import local_search

_OPTIONS_SHARE = 0.3
"""Of the time allowed, for the options of the blocks."""

_MOST_OPTIONS_S = 6.0
"""Blocks are small: more time than this finds no better options."""

_KEPT_LINES = 4

LARGE = 500
"""Ops from which on blocks tell a search more than it finds by itself in seconds."""

_solved: OrderedDict[tuple[str, int], SolvedLine] = OrderedDict()
_solving = Lock()


def hierarchical(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float = 10.0,
    seed: int = 0,
    gap: float = 0.0,
) -> Plan:
    """A schedule from the blocks of the graph, each kind solved once, polished by local search.

    The graph is cut into a line of blocks where few tensors cross. Every kind of block gets a set
    of options (what to keep, what to run again) from the planners of graphs, on the block alone; a
    dynamic programme chooses among them, and which blocks to run again as a whole, by the
    recurrence of persistent schedules. What it gives is a schedule of ops: the local search goes on
    from it, in the time that is left, over the whole graph.

    Parameters
    ----------
    order
        As for `local_search`.
    time_limit_s
        Under a third of it goes into the options, once for a graph: they are remembered for the
        graphs planned last, so that another budget costs the programme and the search alone.
    seed
        Of all random choices. As the time allowed is measured, two runs may still differ.
    gap
        To the proven bound, at which to stop.

    Returns
    -------
    Plan
        With the bound of `local_search`; `search` says how many blocks of how many kinds there
        are, and the time of the schedule before the search (``line_s``).

    Raises
    ------
    UnsupportedError
        The graph is no line of three blocks or more.

    Notes
    -----
    O(rows * (L + options) * slots) for L blocks; rows are distinct ranges of blocks, O(L) where
    blocks repeat. Source: Zhao et al. 2023 (Rockmate), with the recurrence of Beaumont et al. 2019;
    the options come from annealing instead of integer programmes, and memory is that of the replay.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> hierarchical(chain.graph, 9, time_limit_s=0.5).feasible
    True
    """
    scope_of(order)
    started = time.perf_counter()
    deadline = started + time_limit_s
    usual = Schedule.store_all(graph)
    if simulate(graph, usual).peak_bytes <= budget_bytes:
        return make_plan(
            graph,
            budget_bytes,
            usual,
            planner="hierarchical",
            started=started,
            options={"order": order, "time_limit_s": time_limit_s},
            seed=seed,
        )
    solved = solved_line(graph, time_limit_s=time_limit_s, seed=seed)
    starts = line_starts(solved, budget_bytes)
    plan = local_search(
        graph,
        budget_bytes,
        order=order,
        time_limit_s=max(0.0, deadline - time.perf_counter()),
        seed=seed,
        gap=gap,
        starts=starts,
    )
    line_plan = simulate(graph, starts[0]) if starts else None
    figures: dict[str, Any] = {
        **plan.search.figures,
        "blocks": len(solved.line.blocks),
        "kinds": len(solved.classes),
    }
    if line_plan is not None and line_plan.peak_bytes <= budget_bytes:
        figures["line_s"] = line_plan.makespan_s
    return replace(
        plan,
        planner="hierarchical",
        options={**plan.options, "time_limit_s": time_limit_s},
        search=replace(plan.search, figures=figures),
        planning_s=time.perf_counter() - started,
    )


def plan_budgets(
    graph: Graph,
    budgets_bytes: Sequence[int],
    *,
    order: Order = "fixed",
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> list[Plan]:
    """A plan for each budget; the blocks are solved once for all of them.

    Parameters
    ----------
    time_limit_s
        For each budget, and once, up to a third of it, for the blocks.

    Raises
    ------
    UnsupportedError
        The graph is no line of three blocks or more.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> [plan.feasible for plan in plan_budgets(chain.graph, [9, 15], time_limit_s=0.3)]
    [True, True]
    """
    solved_line(graph, time_limit_s=time_limit_s, seed=seed)
    return [
        hierarchical(graph, budget, order=order, time_limit_s=time_limit_s, seed=seed)
        for budget in budgets_bytes
    ]


def solved_line(graph: Graph, *, time_limit_s: float, seed: int) -> SolvedLine:
    """The blocks of `graph` with their options, remembered for the last few graphs.

    Raises
    ------
    UnsupportedError
        The graph is no line of three blocks or more.
    """
    key = (workload_hash(graph), seed)
    with _solving:
        found = _solved.get(key)
        if found is None:
            seconds = min(_MOST_OPTIONS_S, _OPTIONS_SHARE * time_limit_s)
            found = SolvedLine.of(find_blocks(graph), time_limit_s=seconds, seed=seed)
            _solved[key] = found
            while len(_solved) > _KEPT_LINES:
                _solved.popitem(last=False)
        _solved.move_to_end(key)
    return found


def line_starts(solved: SolvedLine, budget_bytes: int) -> tuple[Schedule, ...]:
    """The fastest schedule of the line that fits, or the one of least peak; none at times."""
    found = solved.schedules(budget_bytes)
    return tuple(simulation.schedule for simulation in found[:1])
