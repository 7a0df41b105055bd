"""Bounds that hold for every planner, on the least memory of a graph and on time at a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from schedsim.dataflow.footprint import own_bytes
from schedsim.dataflow.graph import Graph
from schedsim.errors import SchedsimError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.scope import ANY_SCHEDULE, FIXED_ORDER, Scope
from schedsim.simulation.schedule import Schedule

from ._cut_search import CutSearch
from ._cut_table import ORDERS, Order


def as_finite(
    graph: Graph, bound_s: float, scope: Scope, budget_bytes: int, found: bool
) -> tuple[float, Scope, LeastBudget]:
    """(bound, scope, least budget) of a plan, which may contain finite numbers only.

    An infinite bound proves that no schedule of `scope` fits: the least budget is larger.
    """
    need_bytes, op = least_memory_bytes(graph)
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
    arrays = graph.arrays
    sizes = arrays.tensor_bytes.tolist()
    # Tensors that cannot be recomputed, one bit for each.
    lasting = [
        t
        for t, producer in enumerate(arrays.tensor_producer.tolist())
        if producer < 0 or arrays.op_once[producer]
    ]
    bit = {t: 1 << i for i, t in enumerate(lasting)}
    results = sum(bit[t] for t in lasting if arrays.tensor_result[t])
    reads, writes = [], []
    for i in range(graph.num_ops):
        reads.append(arrays.read_tensor[arrays.read_start[i] : arrays.read_start[i + 1]].tolist())
        writes.append(
            arrays.write_tensor[arrays.write_start[i] : arrays.write_start[i + 1]].tolist()
        )
    producer_of = arrays.tensor_producer.tolist()
    inputs = sum(bit[t] for t in lasting if producer_of[t] < 0)
    written = [inputs] * graph.num_ops  # written by ancestors, and graph inputs
    for i in range(graph.num_ops):
        for t in reads[i]:
            if producer_of[t] >= 0:
                before = producer_of[t]
                written[i] |= written[before] | sum(bit.get(w, 0) for w in writes[before])
    wanted = [results] * graph.num_ops  # read by descendants, and results
    for i in range(graph.num_ops - 1, -1, -1):
        all_wanted = wanted[i] | sum(bit.get(t, 0) for t in reads[i])
        for t in reads[i]:
            if producer_of[t] >= 0:
                wanted[producer_of[t]] |= all_wanted
    own = own_bytes(graph).tolist()
    best, best_op = -1, 0
    seen: dict[int, int] = {}
    for i in range(graph.num_ops):
        across = written[i] & wanted[i]
        beside = across & ~sum(bit.get(t, 0) for t in reads[i])
        if beside not in seen:
            seen[beside] = sum(sizes[lasting[k]] for k in _bits(beside))
        need = own[i] + seen[beside]
        for t in writes[i]:
            source = int(arrays.tensor_takes_over[t])
            if source >= 0 and not arrays.tensor_optional[t] and not bit.get(source, 0) & across:
                need -= min(sizes[t], sizes[source])
        if need > best:
            best, best_op = need, i
    return graph.static_bytes + best, graph.op_names[best_op]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


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
