"""Large graphs by their repeated blocks: options for each kind, then the line of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schedsim.dataflow.graph import Graph
from schedsim.errors import UnsupportedError
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.progress import current
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import simulate

from ._block_line import SolvedLine
from ._cut_table import Order
from ._graph_blocks import find_blocks
from ._seeds import saved_bytes_start
from .bounds import least_memory_bytes, scope_of
from .local_search import local_search

_OPTIONS_SHARE = 0.3
"""The share of the effort that is spent on the options of the blocks."""

_MOST_OPTIONS = 6.0
"""Most work for options: blocks are small, and more work finds no better ones."""

LARGE = 500
"""From so many ops on, blocks give a search more than it finds by itself in seconds."""


@timed()
def hierarchical(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    gap: float = 0.0,
    solved: SolvedLine | None = None,
) -> Plan:
    """A schedule from the blocks of the graph, each kind solved once, polished by local search.

    The graph is cut into a line of blocks where few tensors cross. Every kind of block gets a set
    of options (what to keep, what to run again) from the planners of graphs, on the block alone. A
    dynamic program chooses among the options, and which blocks to run again as a whole, by the
    recurrence of persistent schedules. The result is a schedule of ops: the local search goes on
    from it over the whole graph, with the effort that is left.

    Parameters
    ----------
    order
        As for `local_search`.
    time_limit_s, effort
        As of `local_search`. Less than a third goes into the options of the blocks.
    seed
        Seed of all random choices.
    gap
        Gap to the proven bound at which to stop.
    solved
        The blocks of this graph as `solved_line` gave them, so that another budget costs only the
        dynamic program and the search.

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
    the options come from annealing instead of MILPs, and memory is that of the replay.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> hierarchical(chain.graph, 9, effort=0.5).feasible
    True
    """
    scope_of(order)
    effort = Effort.of(effort, time_limit_s)
    given = effort.to_options()
    usual = Schedule.store_all(graph)
    if simulate(graph, usual).peak_bytes <= budget_bytes:
        return make_plan(
            graph,
            budget_bytes,
            usual,
            planner="hierarchical",
            options={"order": order, **given},
            seed=seed,
        )
    if budget_bytes < least_memory_bytes(graph)[0]:
        solved = solved or SolvedLine(find_blocks(graph), {})
        starts: tuple[Schedule, ...] = ()  # one op alone needs more memory: no line of blocks helps
    elif solved is None:
        solved, starts = _solved_for(graph, budget_bytes, effort, seed)
    else:
        starts = line_starts(solved, budget_bytes)
    effort.spend(solved.work)
    with effort.part(1.0) as part:
        part.moves = effort.moves
        plan = local_search(
            graph, budget_bytes, order=order, effort=part, seed=seed, gap=gap, starts=starts
        )
    line_plan = simulate(graph, starts[0]) if starts else None
    figures: dict[str, Any] = {
        **plan.search.figures,
        "blocks": len(solved.line.blocks),
        "kinds": len(solved.line.first_of_kind),
    }
    if line_plan is not None and line_plan.peak_bytes <= budget_bytes:
        figures["line_s"] = line_plan.makespan_s
    return replace(
        plan,
        planner="hierarchical",
        options={**plan.options, **given},
        search=replace(plan.search, figures=figures),
    )


def _solved_for(
    graph: Graph, budget_bytes: int, effort: Effort, seed: int
) -> tuple[SolvedLine, tuple[Schedule, ...]]:
    """The line of blocks and its schedules; what is best to save comes first, in an instant.

    Blocks take seconds, in which there would be no plan: after an interrupt this one is the start.
    """
    early = saved_bytes_start(graph, budget_bytes)
    if early is not None:
        current().report(early.makespan_s)
    starts: tuple[Schedule, ...] = ()
    try:
        with effort.part(1.0) as part:
            solved = solved_line(graph, effort=part, seed=seed)
        starts = line_starts(solved, budget_bytes)
    except KeyboardInterrupt:
        effort.cancel()
        solved = SolvedLine(find_blocks(graph), {})
    if effort.cancelled and early is not None:
        starts = (*starts, Schedule(graph.op_names, early.runs))
    return solved, starts


def plan_budgets(
    graph: Graph,
    budgets_bytes: Sequence[int],
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: float | None = None,
    seed: int = 0,
) -> list[Plan]:
    """A plan for each budget; the blocks are solved once for all of them.

    Parameters
    ----------
    time_limit_s, effort
        For each budget, and additionally up to a third of it once, for the blocks; as of
        `local_search`.

    Raises
    ------
    UnsupportedError
        The graph is no line of three blocks or more.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("twelve", 1, forward_s=[1] * 12, backward_s=[1] * 12,
    ...                           output_bytes=[1] * 12, saved_bytes=[1] * 12)
    >>> [plan.feasible for plan in plan_budgets(chain.graph, [9, 15], effort=0.3)]
    [True, True]
    """
    solved = solved_line(graph, effort=Effort.of(effort, time_limit_s), seed=seed)
    return [
        hierarchical(
            graph,
            budget,
            order=order,
            effort=Effort.of(effort, time_limit_s),
            seed=seed,
            solved=solved,
        )
        for budget in budgets_bytes
    ]


def solved_line(graph: Graph, *, effort: Effort, seed: int) -> SolvedLine:
    """The blocks of `graph` with their options, found with less than a third of `effort`.

    Raises
    ------
    UnsupportedError
        The graph is no line of three blocks or more.
    """
    with effort.take(min(_MOST_OPTIONS, _OPTIONS_SHARE * effort.left)) as part:
        return SolvedLine.of(find_blocks(graph), effort=part, seed=seed)


def blocks_repeat(graph: Graph) -> bool:
    """Whether the graph is a line of blocks with at most half as many kinds as blocks.

    Otherwise the options of blocks take the effort that the search over the whole graph needs.
    """
    try:
        line = find_blocks(graph)
    except UnsupportedError:
        return False
    return 2 * len(line.first_of_kind) <= len(line.blocks)


def line_starts(solved: SolvedLine, budget_bytes: int) -> tuple[Schedule, ...]:
    """The line's fastest schedule that fits, or the one of least peak; at times there is none."""
    found = solved.schedules(budget_bytes)
    return tuple(simulation.schedule for simulation in found[:1])
