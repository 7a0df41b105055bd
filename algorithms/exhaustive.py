"""The oracle: the optimum over all schedules of a tiny workload, by shortest paths."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from schedsim.chain import Chain
from schedsim.errors import PlannerLimitError
from schedsim.graph import Graph
from schedsim.plans import ANY_SCHEDULE, Plan, make_plan
from schedsim.schedule import Schedule
from schedsim.simulator import simulate

MAX_STATES = 300_000


def exhaustive(workload: Chain | Graph, budget_bytes: int, *, max_states: int = MAX_STATES) -> Plan:
    """The fastest schedule of all within `budget_bytes`: any order, any op any number of times.

    A state is the set of tensors alive and the set of ops done. An op may run where its inputs
    are alive and its memory fits; which tensors stay alive after it is chosen, and only the largest
    sets that fit need be tried, as dropping a tensor later is free. A* with the time of the ops not
    yet done as the estimate finds the optimum.

    Parameters
    ----------
    max_states
        States to expand before giving up.

    Raises
    ------
    PlannerLimitError
        `max_states` was reached: the workload is too large for an oracle.

    Notes
    -----
    O(2^(tensors + ops)) states at worst, and up to 2^tensors transitions each: chains of 5 stages
    take a tenth of a second, of 6 a second, of 8 half a minute where they can be done at all. An
    infeasible budget is raised step by step to the least feasible one, a search per step.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> exhaustive(chain, 5).makespan_s  # the best persistent schedule takes 13
    11.0
    """
    started = time.perf_counter()
    search = _Search(workload.graph, max_states)
    runs = search.run(budget_bytes)
    if runs is not None:
        schedule = Schedule(workload.op_names, runs)
        return make_plan(
            workload,
            budget_bytes,
            schedule,
            planner="exhaustive",
            started=started,
            lower_bound_s=simulate(workload, schedule).makespan_s,
            bound_scope=ANY_SCHEDULE,
        )
    least, found = budget_bytes, None
    while found is None:
        assert search.next_bytes is not None, "every workload fits some budget"
        least = search.next_bytes
        found = search.run(least)
    replay = simulate(workload, Schedule(workload.op_names, found))
    return make_plan(
        workload,
        budget_bytes,
        None,
        planner="exhaustive",
        started=started,
        bound_scope=ANY_SCHEDULE,
        min_feasible_bytes=replay.peak_bytes,
        binding_op=replay.peak_op,
    )


@dataclass(frozen=True)
class _OpMasks:
    """An op with its tensors as bit masks."""

    time_s: float
    workspace: int
    saving_workspace: int  # of a run that materialises an optional output
    reads: int
    always: int  # outputs that are always materialised
    optional: int
    once: bool
    takes_over: tuple[tuple[int, int], ...]  # (output bit, input bit)


@dataclass
class _Search:
    """A* over (tensors alive, ops done); sets are bit masks."""

    graph: Graph
    max_states: int
    budget: int = field(init=False, default=0)
    next_bytes: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        arrays = self.graph.arrays
        self.sizes = arrays.tensor_bytes.tolist()
        index = {name: i for i, name in enumerate(arrays.tensor_names)}
        self.ops = []
        for op in self.graph.ops:
            optional = sum(1 << index[t] for t in op.optional)
            writes = sum(1 << index[t] for t in op.writes)
            self.ops.append(
                _OpMasks(
                    op.time_s,
                    op.workspace_bytes,
                    op.workspace_bytes
                    if op.saving_workspace_bytes is None
                    else op.saving_workspace_bytes,
                    sum(1 << index[t] for t in op.reads),
                    writes & ~optional,
                    optional,
                    op.once,
                    tuple((1 << index[o], 1 << index[s]) for o, s in op.in_place.items()),
                )
            )
        self.results = sum(1 << index[t] for t in self.graph.results)
        self.inputs = (1 << len(self.graph.inputs)) - 1
        self.all_done = (1 << len(self.ops)) - 1
        self.useful = cache(self._useful)
        self.bytes_of = cache(self._bytes_of)

    def _bytes_of(self, mask: int) -> int:
        return sum(self.sizes[i] for i in _bits(mask))

    def _useful(self, done: int) -> tuple[int, int]:
        """Ops that may still have to run, and tensors that one of them reads."""
        tensors, ops = self.results, self.all_done & ~done
        for i in range(len(self.ops) - 1, -1, -1):
            op = self.ops[i]
            if (op.always | op.optional) & tensors or ops >> i & 1:
                ops |= 1 << i
                tensors |= op.reads
        return ops, tensors

    def run(self, budget: int) -> list[int] | None:
        """The fastest sequence of ops within `budget`; ``None`` where there is none.

        Then `next_bytes` is the least budget at which more could be tried.
        """
        self.budget = budget
        room = budget - self.graph.static_bytes
        self.next_bytes = None
        left_s = {0: self.graph.store_all_s}
        start = (self.inputs, 0)
        best: dict[tuple[int, int], float] = {start: 0.0}
        parent: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
        queue = [(self.graph.store_all_s, 0, start)]
        closed: set[tuple[int, int]] = set()
        pushed = 0
        while queue:
            _, _, state = heapq.heappop(queue)
            if state in closed:
                continue
            closed.add(state)
            if len(closed) > self.max_states:
                raise PlannerLimitError(
                    f"{self.graph.name!r} needs more than {self.max_states:,} states",
                    hint="exhaustive is an oracle for tiny workloads; use --planner auto",
                )
            live, done = state
            if done == self.all_done and live & self.results == self.results:
                return self._path(parent, state)
            for op_index, after in self._moves(live, done, room):
                done_after = done | 1 << op_index
                cost = best[state] + self.ops[op_index].time_s
                following = (after, done_after)
                if cost < best.get(following, math.inf):
                    best[following] = cost
                    parent[following] = (state, op_index)
                    if done_after not in left_s:
                        left_s[done_after] = math.fsum(
                            op.time_s for i, op in enumerate(self.ops) if not done_after >> i & 1
                        )
                    pushed += 1
                    closed.discard(following)  # rounding may find a shorter way late
                    heapq.heappush(queue, (cost + left_s[done_after], pushed, following))
        return None

    def _path(
        self, parent: dict[tuple[int, int], tuple[tuple[int, int], int]], state: tuple[int, int]
    ) -> list[int]:
        runs = []
        while state in parent:
            state, op_index = parent[state]
            runs.append(op_index)
        return runs[::-1]

    def _moves(self, live: int, done: int, room: int) -> Iterator[tuple[int, int]]:
        """(op, tensors alive after it) for every op that can run and every largest set."""
        useful_ops, _ = self.useful(done)
        for i in _bits(useful_ops):
            op = self.ops[i]
            if op.reads & ~live or (op.once and done >> i & 1):
                continue
            writes = op.always | op.optional
            if done >> i & 1 and not writes & ~live:
                continue
            _, wanted = self.useful(done | 1 << i)
            charged = self.bytes_of(op.reads) + self.bytes_of(op.always)
            others = live & ~op.reads & ~writes & wanted
            optional = op.optional & wanted
            for shared, dropped in self._in_place_ways(op):
                free = (op.reads & ~dropped | op.always) & wanted
                left = room - charged + shared
                for kept in self._largest(others, left - op.workspace):
                    yield i, kept | free
                if not optional:
                    continue
                for kept in self._largest(others | optional, left - op.saving_workspace):
                    if kept & optional:
                        yield i, kept | free

    def _in_place_ways(self, op: _OpMasks) -> Iterator[tuple[int, int]]:
        """(bytes shared, inputs dropped) for each choice of inputs to take over."""
        pairs = [pair for pair in op.takes_over if pair[0] & op.always]
        for choice in range(1 << len(pairs)):
            chosen = [pair for k, pair in enumerate(pairs) if choice >> k & 1]
            shared = sum(min(self.bytes_of(o), self.bytes_of(s)) for o, s in chosen)
            yield shared, sum(source for _, source in chosen)

    def _largest(self, candidates: int, room: int) -> Iterator[int]:
        """The subsets of `candidates` that fit in `room` and to which nothing can be added."""
        if room < 0:
            self._missed(-room)
            return
        items = sorted(_bits(candidates), key=lambda t: -self.sizes[t])
        total = [0]
        for item in reversed(items):
            total.append(total[-1] + self.sizes[item])
        total.reverse()  # total[k]: bytes of items[k:]

        def extend(k: int, kept: int, left: int, smallest_out: int) -> Iterator[int]:
            if total[k] <= left:
                if smallest_out > left - total[k]:
                    yield kept | sum(1 << item for item in items[k:])
                return
            size = self.sizes[items[k]]
            if size <= left:
                yield from extend(k + 1, kept | 1 << items[k], left - size, smallest_out)
            else:
                self._missed(size - left)
            yield from extend(k + 1, kept, left, min(smallest_out, size))

        yield from extend(0, 0, room, 1 << 62)

    def _missed(self, lacking: int) -> None:
        """Remember that with `lacking` more bytes something else could have been tried."""
        needed = self.budget + lacking
        if self.next_bytes is None or needed < self.next_bytes:
            self.next_bytes = needed


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
