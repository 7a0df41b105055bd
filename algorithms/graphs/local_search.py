"""Local search over recomputation and order: the planner for graphs too large to solve exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.progress import current
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._cut_table import Order
from .bounds import as_finite, check_order, scope_of


@timed()
def local_search(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    gap: float = 0.0,
    starts: Sequence[Schedule] = (),
    max_moves: int | None = None,
    on_least: Callable[[Simulation], object] | None = None,
) -> Plan:
    """The fastest schedule within `budget_bytes` found by annealing.

    Several walkers start from the graph's order, from its greedy repair (at the peak, evict what is
    cheapest to recompute), on hundreds of ops and more from what is best for the forward to save,
    as `saved_bytes` chooses it, and, where the order is free, from orders that need less memory.
    Where none of them fits, on fewer ops, others start from schedules that the bound suggests.
    After each round, the worse half of the walkers drops out. A move inserts, removes or shifts
    runs, singly or with a greedy repair of the peak after it; the profile of live memory is updated
    with every edit, so that a move costs microseconds. Two kinds of walkers share the effort: one
    of many small moves, one of few thorough ones. On 60 to 499 ops in the fixed order, integer
    programs at last look for better mixtures of the fastest schedules, and plan some ops of the
    best one anew at a time.

    Parameters
    ----------
    order
        ``"fixed"``: the first runs keep the graph's order, recomputations may stand anywhere;
        ``"free"``: any legal sequence.
    time_limit_s
        Seconds, where there is no `effort`: the search takes that long, and two runs may differ.
        Beside an effort it is a watchdog. The search stops earlier where the bound is met; an
        interrupt gives the best plan so far.
    effort
        Work, of which a core does one unit in about a second; 20 where neither this nor a time
        limit is given. With the same seed and the same effort the plan is the same every time.
    seed
        Seed of all random choices.
    num_threads
        Walkers that run at the same time; all cores by default. The bound has its own thread.
    gap
        Gap to the proven bound at which to stop.
    starts
        Schedules to start from beside the usual ones. They must be legal and in `order`, but need
        not fit.
    max_moves
        Most moves of all walkers together: they end the search instead of the work, and time is
        a watchdog. The bound, too, then takes no more work than so many moves are worth.
    on_least
        Called with the simulation of the schedule of least peak, where no schedule fits.

    Returns
    -------
    Plan
        ``optimal`` where its time meets the proven bound, else ``feasible`` with its gap. Where no
        schedule fits, the least budget named is one at which this search finds a schedule again.

    Raises
    ------
    InvalidScheduleError
        One of `starts` is not legal.
    SchedsimError
        One of `starts` is in another order, or an option is outside its range.

    Notes
    -----
    Memory O(ops + reads) a walker. A move takes O(edits * (reads + writes of an op) * log runs).

    The space is that of Checkmate (Jain et al. 2020): ops may run again before any first run. The
    annealing over recomputations follows Imanishi et al. 2023 (FastSA), with another neighbourhood
    and another objective.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("four", (
    ...     Op("a", time_s=1, writes={"x": 2}),
    ...     Op("b", time_s=1, reads=("x",), writes={"y": 2}),
    ...     Op("c", time_s=1, reads=("y",), writes={"z": 2}),
    ...     Op("d", "backward", time_s=1, reads=("x", "z")),
    ... ))
    >>> local_search(graph, 4, effort=0.1).schedule
    Schedule(a b c a d)
    """
    from ._graph_search import GraphSearch

    _check_options(num_threads, max_moves)
    for start in starts:
        simulate(graph, start)  # raises where the start is not legal
        check_order(graph, start, order)
    scope = scope_of(order)
    effort = Effort.of(effort, time_limit_s, moves=max_moves)
    given = effort.to_options()
    search = GraphSearch(
        graph, budget_bytes, order, effort, seed=seed, num_threads=num_threads, gap=gap
    )
    search.run(starts)
    best = search.best()
    if best is not None:
        current().report(simulate(graph, best).makespan_s)  # the best may not come from a walker
    lower_bound_s, scope, least = as_finite(
        graph,
        search.bound.bound_s,
        scope,
        budget_bytes,
        found=best is not None,
        search=search.bound.cuts,
    )
    options: dict[str, Any] = {"order": order, **given}
    record = SearchRecord(
        num_moves=search.moves, ended_by=effort.ended_by, bound_by=search.bound.how
    )
    if best is None:
        if on_least is not None:
            on_least(search.least())
        # After an interrupt none was looked for: store-all is a schedule in any case.
        lean = search.lean.found or simulate(graph, Schedule.store_all(graph))
        if lean.peak_bytes > budget_bytes:
            least = replace(least, found_bytes=lean.peak_bytes, op=lean.peak_op)
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="local_search",
        options=options,
        lower_bound_s=lower_bound_s,
        bound_scope=scope,
        least=least,
        seed=seed,
        search=record,
    )


def _check_options(num_threads: int | None, max_moves: int | None) -> None:
    if num_threads is not None and num_threads < 1:
        raise SchedsimError(
            f"num_threads {num_threads} must be at least 1", hint="leave it out for all cores"
        )
    if max_moves is not None and max_moves < 0:
        raise SchedsimError(
            f"max_moves {max_moves} must not be negative", hint="leave it out for no limit"
        )
