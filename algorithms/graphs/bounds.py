"""Bounds that hold for every planner, on the least memory of a graph and on time at a budget."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, Scope
from schedsim.simulation.schedule import Schedule

from ._cut_search import CutSearch
from ._cut_table import ORDERS, Order
from ._memory_need import END, first_runs


def as_finite(
    graph: Graph,
    bound_s: float,
    scope: Scope,
    budget_bytes: int,
    *,
    found: bool,
    search: CutSearch | None = None,
) -> tuple[float, Scope, LeastBudget]:
    """(bound, scope, least budget) of a plan, which may contain finite numbers only.

    An infinite bound proves that no schedule of `scope` fits: the least budget is larger. What
    `search` has proven about memory holds over any schedule.
    """
    need_bytes, op = cast("tuple[int, str | None]", least_memory_bytes(graph))
    if search is not None and search.need is not None and search.need.least_bytes > need_bytes:
        need_bytes = search.need.least_bytes
        op = None if search.need.op == END else graph.op_names[search.need.op]
    least = LeastBudget(None, op, need_bytes)
    if math.isinf(bound_s):
        assert not found, "there is a schedule, and a proof that there is none"
        if need_bytes <= budget_bytes:
            least = LeastBudget(None, None, budget_bytes + 1, scope)
        return graph.store_all_s, ANY_SCHEDULE, least
    return bound_s, scope, least


def scope_of(order: Order) -> Scope:
    """The class of schedules over which a bound for `order` holds.

    Raises
    ------
    SchedsimError
        `order` is neither of the two.
    """
    if order not in ORDERS:
        raise SchedsimError(f"order {order!r} is unknown", hint="one of 'fixed', 'free'")
    return FIXED_ORDER if order == "fixed" else ANY_SCHEDULE


def check_order(graph: Graph, schedule: Schedule, order: Order) -> None:
    """Refuse `schedule` where its first runs are not in `order`; O(runs).

    Raises
    ------
    SchedsimError
        Order is ``"fixed"``, and an op runs before one that stands before it in the graph.
    """
    if order == "free":
        return
    runs = schedule.bind(graph)
    first = np.unique(runs, return_index=True)[1]
    early = np.flatnonzero(np.diff(first) < 0)
    if early.size:
        names = graph.op_names
        raise SchedsimError(
            f"the start runs {names[early[0] + 1]} before {names[early[0]]}, which stands before "
            "it in the graph",
            hint="use order='free'",
        )


def least_memory_bytes(graph: Graph) -> tuple[int, str]:
    """A bound on the peak of every schedule, and the op that sets it.

    While an op runs for the first time, these are alive besides static bytes: its inputs, outputs
    and workspace; graph inputs that the op or a descendant reads, or that are results; and tensors
    that its ancestors which run only once have written for its descendants or as results. The
    largest sum over the ops is the bound.

    Returns
    -------
    (int, str)
        Bytes, and the op's name.

    Notes
    -----
    O(ops + reads), times the number of graph inputs and outputs of ``once`` ops over 64.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> ops = (Op("f", reads=("x",), writes={"y": 8}), Op("b", reads=("y",)))
    >>> graph = Graph("g", ops, inputs={"x": 4})
    >>> least_memory_bytes(graph)
    (12, 'f')
    """
    need_bytes = first_runs(graph).need_bytes
    largest = max(need_bytes)
    return graph.static_bytes + largest, graph.op_names[need_bytes.index(largest)]


def time_bound_s(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float | None = None,
    effort: Effort | float | None = None,
) -> tuple[float, str]:
    """A bound on the time of every schedule within `budget_bytes`, and how it was found.

    Every op runs once; the question is how much must run again. Cuts at the first runs of ops
    answer it (see ``_cut_table.py``): first a fractional knapsack for all of them, then an MILP for
    the best of them, which knows what recomputation reads, then an MILP for several together,
    chosen where the schedule that the MILP suggests does not fit. Each step starts only while there
    is effort left; the first is always taken.

    Parameters
    ----------
    order
        ``"fixed"``: over schedules whose first runs come in the graph's order; ``"free"``: over all
        schedules.
    time_limit_s, effort
        A target for the time or the work, not kept to the second; a unit of work by default.

    Returns
    -------
    (float, str)
        Seconds, at least the store-all time; infinite where it is proven that nothing fits.

    Notes
    -----
    The knapsacks take O(ops + tensors + reads), 64 times; 10,000 ops take well under a second.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> time_bound_s(chain.graph, 5, order="free")[0]  # the optimum; store-all takes 8
    11.0
    """
    scope_of(order)
    if budget_bytes < least_memory_bytes(graph)[0]:
        return math.inf, "no schedule fits: one op alone needs more"
    search = CutSearch(graph, budget_bytes, order, Effort.of(effort, time_limit_s, default=1.0))
    search.run()
    return search.bound_s, search.how
