"""Bounds that hold for every planner: on the least memory of a graph, and on time at a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np

from schedsim.errors import SchedsimError
from schedsim.graph import Graph
from schedsim.plans import ANY_SCHEDULE

from ._cut_model import cut_programme
from ._cuts import Cut, CutTable, Order, cut_bound, fixed_order_bounds, own_bytes
from ._scaling import SolverTimes, solver_times

FIXED_ORDER = "fixed order of first runs"
"""The schedules whose first runs come in the graph's order; repeated runs stand anywhere."""

ORDERS: tuple[Order, ...] = ("fixed", "free")

# Cuts put into one programme, and cuts looked at one by one before that.
_MOST_CUTS = 6
_MOST_SINGLE = 12
# Non-zeros that HiGHS reads, presolves and solves as a linear programme in about a second.
_NONZEROS_PER_S = 60_000.0


def scope_of(order: Order) -> str:
    """The class of schedules that a bound for `order` speaks of.

    Raises
    ------
    SchedsimError
        `order` is neither of the two.
    """
    if order not in ORDERS:
        raise SchedsimError(f"order {order!r} is unknown", hint="one of 'fixed', 'free'")
    return FIXED_ORDER if order == "fixed" else ANY_SCHEDULE


def least_memory_bytes(graph: Graph) -> tuple[int, str]:
    """A bound on the peak of every schedule, and the op that sets it.

    While an op runs for the first time, these are alive besides static bytes: its inputs, outputs
    and workspace; graph inputs that it or a descendant reads, or that are results; and what its
    ancestors that run only once have written for its descendants or as results. The largest sum is
    taken.

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
    # Tensors that cannot be made again, as bits.
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
    written = [inputs] * graph.num_ops  # by ancestors, and inputs
    for i in range(graph.num_ops):
        for t in reads[i]:
            if producer_of[t] >= 0:
                before = producer_of[t]
                written[i] |= written[before] | sum(bit.get(w, 0) for w in writes[before])
    wanted = [results] * graph.num_ops  # by descendants, and results
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
    graph: Graph, budget_bytes: int, *, order: Order = "fixed", time_limit_s: float = 1.0
) -> tuple[float, str]:
    """A bound on the time of every schedule within `budget_bytes`, and how it was found.

    Every op runs once; the question is how much must run again. Cuts at the first runs of ops
    answer it (see ``_cuts.py``): first all of them by a fractional knapsack, then the best of them
    as a programme that knows what recomputation reads, then several together. Each step only
    starts while there is time; the first always runs.

    Parameters
    ----------
    order
        ``"fixed"``: over schedules whose first runs come in the graph's order; ``"free"``: over
        all.
    time_limit_s
        Aimed at, not kept to the second.

    Returns
    -------
    (float, str)
        Seconds, at least the store-all time; infinite where it proves that nothing fits.

    Notes
    -----
    The knapsacks are O(ops + tensors + reads), 64 times; 10,000 ops take well under a second.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> time_bound_s(chain.graph, 5, order="free")[0]  # store-all takes 8; the optimum 11
    10.0
    """
    started = time.perf_counter()
    scope_of(order)
    if budget_bytes < least_memory_bytes(graph)[0]:
        return math.inf, "no schedule fits: one op alone needs more"
    search = _Search(graph, budget_bytes, order, started + time_limit_s)
    search.knapsacks()
    search.single_programmes()
    search.several_cuts()
    if math.isinf(search.best_s):
        return math.inf, f"no schedule fits: {search.how}"
    if search.best_s == 0:
        return graph.store_all_s, "store-all time"
    return graph.store_all_s + search.best_s, search.how


class _Search:
    """The steps of `time_bound_s`; keeps the best bound on extra time."""

    def __init__(self, graph: Graph, budget_bytes: int, order: Order, until: float) -> None:
        self.graph, self.until = graph, until
        self.table = CutTable(graph, budget_bytes, order)
        self.times: SolverTimes = solver_times(graph.arrays.op_time_s)
        self.best_s, self.how = 0.0, ""
        self.cuts: dict[int, Cut] = {}
        self.bound_at: dict[int, float] = {}
        arrays = graph.arrays
        self.nonzeros = 3 * arrays.read_tensor.size + 4 * arrays.tensor_bytes.size

    @property
    def left_s(self) -> float:
        return self.until - time.perf_counter()

    def keep(self, extra_s: float, how: str) -> None:
        if extra_s > self.best_s:
            self.best_s, self.how = extra_s, how

    def cut(self, op: int) -> Cut:
        if op not in self.cuts:
            self.cuts[op] = self.table.cut(op)
        return self.cuts[op]

    def knapsacks(self) -> None:
        """The fractional knapsack at each op, the most promising first."""
        rough = fixed_order_bounds(self.graph, self.table.budget_bytes, self.times.costs)
        best = 0.0
        self.rough = rough
        for place, op in enumerate(np.argsort(-rough, kind="stable").tolist()):
            # In any order a cut is crossed by no more than in the fixed one.
            if rough[op] <= 0 or (place >= _MOST_SINGLE and rough[op] <= best):
                break
            if place >= _MOST_SINGLE and (self.left_s < 0 or place > 200):
                break
            found = cut_bound(self.table, self.cut(op), self.times.costs)
            self.bound_at[op] = found
            best = max(best, found)
            extra = math.inf if math.isinf(found) else self.times.bound_s(found)
            self.keep(extra, f"knapsack at {self.graph.op_names[op]}")

    def single_programmes(self) -> None:
        """One cut with what recomputation reads: relaxed for several ops, then in whole numbers."""
        ops = sorted(self.bound_at, key=lambda op: -self.bound_at[op])[:_MOST_SINGLE]
        relaxed: dict[int, float] = {}
        for op in ops:
            if self.left_s < self.nonzeros / _NONZEROS_PER_S or math.isinf(self.best_s):
                break
            relaxed[op] = self.solve([self.cut(op)], 0.3 * self.left_s, integral=False)
        for op in sorted(relaxed, key=lambda op: -relaxed[op])[:3]:
            if self.left_s > 0 and not math.isinf(self.best_s):
                self.bound_at[op] = self.solve([self.cut(op)], 0.5 * self.left_s, integral=True)

    def several_cuts(self) -> None:
        """Several cuts together: relaxed, then in whole numbers."""
        ops = self.spread()
        for integral in (False, True):
            needed_s = self.nonzeros * len(ops) / _NONZEROS_PER_S
            if len(ops) > 1 and self.left_s > needed_s and not math.isinf(self.best_s):
                self.solve([self.cut(op) for op in ops], self.left_s, integral=integral)

    def solve(self, cuts: list[Cut], limit_s: float, *, integral: bool) -> float:
        """The extra time that a programme proves, in solver units."""
        answer = cut_programme(self.table, cuts, self.times.costs).solve(limit_s, integral=integral)
        names = ", ".join(self.graph.op_names[cut.op] for cut in cuts[:3])
        kind = "whole" if integral else "relaxed"
        how = f"{kind} programme of {len(cuts)} cuts: {names}{', ...' if len(cuts) > 3 else ''}"
        if answer.infeasible:
            self.keep(math.inf, how)
            return math.inf
        self.keep(self.times.bound_s(answer.bound), how)
        return answer.bound or 0.0

    def spread(self) -> list[int]:
        """The best op, and others before and after it at which something must go."""
        if not self.bound_at:
            return []
        best = max(self.bound_at, key=lambda op: self.bound_at[op])
        some = np.flatnonzero(self.rough > 0.3 * self.rough.max())
        places = np.linspace(0, some.size - 1, _MOST_CUTS - 1).round().astype(int)
        chosen = [best]
        for op in some[places].tolist():
            cut = self.cut(op)
            if all(cut.before[other] or cut.after[other] for other in chosen):
                chosen.append(op)
        return sorted(chosen)
