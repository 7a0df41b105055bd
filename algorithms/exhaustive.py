"""The optimum over all schedules of a small workload, by shortest paths."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import PlannerLimitError
from schedsim.plans.effort import Effort
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan, timed
from schedsim.plans.scope import FIXED_ORDER
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .graphs._cut_table import Order
from .graphs.bounds import scope_of

MAX_STATES = 300_000

_TRIES = 10
"""Where searches share a number of states, so many times as many may be tried as next ones."""
_TRY_WORK = 2e-5
"""Units of work of a try, about."""

State = tuple[int, int, int]
"""Tensors alive, ops done, ops that owe a read of their bundle; bit masks."""


@timed()
def exhaustive(
    workload: Chain | Graph,
    budget_bytes: int,
    *,
    order: Order = "free",
    max_states: int = MAX_STATES,
) -> Plan:
    """The fastest schedule of all within `budget_bytes`: any order, any op any number of times.

    A state is the set of tensors alive and the set of ops done. An op may run where its inputs
    are alive and its memory fits; which tensors stay alive beside it is chosen, and only the
    largest sets that fit need be tried, as dropping a tensor later is free.

    A* finds the optimum. Its estimate is the time of the ops not yet done and of those whose lost
    outputs one of them needs, through any number of steps. Each of these must run at least once
    more, and no run takes more than its own time off the estimate, so that it is consistent. A
    state is dropped for one with the same ops done, no less alive, and reached no later: what can
    follow the one can follow the other. No op is assumed to run only once.

    Parameters
    ----------
    order
        ``"free"``, or ``"fixed"``: first runs in the order of the ops, repeats anywhere.
    max_states
        Number of states that one search may expand before it gives up.

    Raises
    ------
    PlannerLimitError
        One search would expand more states than that.
    SchedsimError
        The order is neither of the two.

    Notes
    -----
    O(2^(tensors + ops)) states at worst, and up to 2^tensors transitions each. The smallest
    feasible budget is found by halving, a search per step; it stays unknown where one of these
    reaches `max_states`.

    Examples
    --------
    >>> from schedsim import Chain
    >>> chain = Chain.from_arrays("four", 1, forward_s=[1] * 4, backward_s=[1] * 4,
    ...                           output_bytes=[1] * 4, saved_bytes=[1] * 4)
    >>> exhaustive(chain, 5).makespan_s  # the best persistent schedule takes 13
    11.0
    """
    search = _StateSearch(workload.graph, order, max_states)
    anyhow = search.run(budget_bytes, fastest=False)
    if anyhow is None:
        return _least_plan(search, workload, budget_bytes)
    return _fastest_plan(search, workload, budget_bytes, anyhow)


def plan_within_states(
    graph: Graph, budget_bytes: int, order: Order, effort: Effort, max_states: int
) -> Plan | Schedule | None:
    """The plan of `exhaustive`, if all of its searches together expand at most `max_states`.

    Otherwise a schedule that fits, of any speed; or ``None``, where none was found by then. Tries
    are limited too: one state may have thousands of next ones. The effort pays for the tries.
    """
    search = _StateSearch(graph, order, max_states, together=True)
    search.options = {"order": order, **effort.to_options()}
    anyhow = None
    try:
        anyhow = search.run(budget_bytes, fastest=False)
        if anyhow is not None:
            return _fastest_plan(search, graph, budget_bytes, anyhow)
        plan = _least_plan(search, graph, budget_bytes)
        return None if plan.least.found_bytes is None else plan
    except PlannerLimitError:
        return None if anyhow is None else Schedule(graph.op_names, anyhow)
    finally:
        effort.spend(_TRY_WORK * search.num_tried)


def _fastest_plan(
    search: _StateSearch, workload: Chain | Graph, budget_bytes: int, anyhow: list[int]
) -> Plan:
    """The plan of the fastest schedule; `anyhow` is one that fits."""
    runs = search.run(budget_bytes, fastest=True, at_most_s=search.time_of(anyhow))
    schedule = Schedule(workload.op_names, anyhow if runs is None else runs)
    return make_plan(
        workload,
        budget_bytes,
        schedule,
        planner="exhaustive",
        options=search.options,
        lower_bound_s=simulate(workload, schedule).makespan_s,
        bound_scope=scope_of(search.order),
    )


def _least_plan(search: _StateSearch, workload: Chain | Graph, budget_bytes: int) -> Plan:
    """The plan without a schedule, after a search in vain: it names the least budget."""
    scope = scope_of(search.order)
    least = search.without_limit(workload)
    too_small = search.next_bytes - 1
    try:
        while least.peak_bytes > too_small + 1:
            budget = (too_small + least.peak_bytes) // 2
            found = search.run(budget, fastest=False)
            if found is None:
                too_small = min(search.next_bytes, least.peak_bytes) - 1
            else:
                least = simulate(workload, Schedule(workload.op_names, found))
        known = LeastBudget(least.peak_bytes, least.peak_op, least.peak_bytes, scope)
    except PlannerLimitError:
        known = LeastBudget(None, None, budget_bytes + 1, scope)
    return make_plan(
        workload,
        budget_bytes,
        None,
        planner="exhaustive",
        options=search.options,
        bound_scope=scope,
        least=known,
    )


@dataclass(frozen=True, slots=True)
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


class _StateSearch:
    """A* over states of memory, for the fastest schedule or for any."""

    next_bytes: int
    """After a search in vain: no budget below this gives another answer."""

    def __init__(
        self, graph: Graph, order: Order, max_states: int, *, together: bool = False
    ) -> None:
        self.name, self.max_states, self.static = graph.name, max_states, graph.static_bytes
        self.order, self.fixed = order, scope_of(order) == FIXED_ORDER
        self.options: dict[str, Any] = {"order": order} if self.fixed else {}
        # Of all searches: states expanded, and tries of next ones.
        self.num_expanded, self.num_tried, self._together = 0, 0, together
        self._most_tried = _TRIES * max_states if together else math.inf
        self.sizes = graph.arrays.tensor_bytes.tolist()
        bit = {name: 1 << i for i, name in enumerate(graph.arrays.tensor_names)}
        self.ops = []
        for op in graph.ops:
            saving = op.saving_workspace_bytes
            self.ops.append(
                _OpMasks(
                    op.time_s,
                    op.workspace_bytes,
                    op.workspace_bytes if saving is None else saving,
                    sum(bit[t] for t in op.reads),
                    sum(bit[t] for t in op.writes if t not in op.optional),
                    sum(bit[t] for t in op.optional),
                    op.once,
                    tuple((bit[o], bit[s]) for o, s in op.in_place.items()),
                )
            )
        self.results = sum(bit[t] for t in set(graph.results))
        # Where something must be recomputed, a bit beside the bits of the ops done says that the
        # forward is over: the run before has dropped what must go, and the backward may begin.
        self.evicted = sum(bit[t] for op in graph.ops for t in op.evicted)
        self.is_backward = [op.phase == "backward" for op in graph.ops]
        self.backward = sum(1 << i for i, is_so in enumerate(self.is_backward) if is_so)
        self.over = 1 << len(self.ops)
        self.all_ops = self.over - 1
        if not self.evicted or self.backward == self.all_ops or not self.backward:
            self.evicted = 0
        self.inputs = (1 << len(graph.inputs)) - 1
        self.last_first = [
            (1 << i, op.always | op.optional, op.reads, op.time_s, op.once)
            for i, op in reversed(list(enumerate(self.ops)))
        ]
        # Of a search for any schedule: what it finds must not hang on measured times.
        self.last_first_alike = [(*row[:3], 1.0, row[4]) for row in self.last_first]
        self.wanted = cache(self._wanted)
        self.bytes_of = cache(self._bytes_of)
        self.largest = cache(self._largest)

    def time_of(self, runs: list[int]) -> float:
        return math.fsum(self.ops[run].time_s for run in runs)

    def _bytes_of(self, mask: int) -> int:
        return sum(self.sizes[i] for i in _bits(mask))

    def _wanted(self, done: int) -> tuple[list[int], int]:
        """Ops that may still be of use, and the tensors that one of them reads."""
        tensors, ops = self.results, []
        for i in range(len(self.ops) - 1, -1, -1):
            op = self.ops[i]
            if (op.always | op.optional) & tensors or not done >> i & 1:
                ops.append(i)
                tensors |= op.reads
        return ops, tensors

    def _left_s(self, live: int, done: int, ops: list[tuple[int, int, int, float, bool]]) -> float:
        """Time of the `ops` that must still run; infinite where what they read is lost for good."""
        lacking, left_s = self.results & ~live, 0.0
        for op_bit, writes, reads, time_s, once in ops:
            if writes & lacking or not done & op_bit:
                if once and done & op_bit:
                    return math.inf
                left_s += time_s
                lacking |= reads & ~live
        return math.inf if lacking & self.inputs else left_s

    def run(self, budget: int, *, fastest: bool, at_most_s: float = math.inf) -> list[int] | None:
        """A sequence of ops within `budget`, the fastest or any; ``None`` where there is none.

        Where any sequence will do, the time spent does not count: of two states with the same ops
        done, the one with more tensors alive is as good.
        """
        room = budget - self.static
        ops = self.last_first if fastest else self.last_first_alike
        lacking = 1 << 62
        start: State = (self.inputs, 0, 0)
        spent: dict[State, float] = {start: 0.0}
        parent: dict[State, tuple[State, int]] = {}
        expanded: dict[tuple[int, int], list[tuple[int, float]]] = {}
        queue = [(0.0, 0.0, 0, 0.0, start)]
        num_pushed = 0
        most = self.max_states + (0 if self._together else self.num_expanded)
        at_most_s *= 1 + 1e-12  # sums of floats taken in another order
        while queue:
            _, _, _, spent_s, state = heapq.heappop(queue)
            if spent_s > spent[state]:
                continue  # a shorter way was found since
            live, done, owed = state
            if done & self.all_ops == self.all_ops and self._is_end(live, owed):
                return _path(parent, state)
            others = expanded.setdefault((done, owed), [])
            for other, other_s in others:
                if not live & ~other and other_s <= spent_s and other != live:
                    break
            else:
                others.append((live, spent_s))
                self.num_expanded += 1
                if self.num_expanded > most:
                    raise self._too_many()
                for run, (sets, missed) in self._moves(state, room):
                    lacking = min(lacking, missed)
                    self._try(len(sets))
                    after_s = spent_s + self.ops[run[0]].time_s if fastest else 0.0
                    for after in self._after(done, run, sets):
                        done_after = after[1]
                        if after_s >= spent.get(after, math.inf) or self._breaks(after):
                            continue
                        left_s = self._left_s(after[0], done_after, ops)
                        if after_s + left_s > at_most_s or left_s == math.inf:
                            continue
                        spent[after] = after_s
                        parent[after] = (state, run[0])
                        num_pushed += 1
                        entry = (after_s + left_s, left_s, num_pushed, after_s, after)
                        heapq.heappush(queue, entry)
        self.next_bytes = budget + lacking
        return None

    def _too_many(self) -> PlannerLimitError:
        return PlannerLimitError(
            f"{self.name!r} needs more than {self.max_states:,} states",
            hint="exhaustive is an oracle for tiny workloads; use --planner auto",
        )

    def _try(self, number: int) -> None:
        self.num_tried += number
        if self.num_tried > self._most_tried:
            raise self._too_many()

    def _after(
        self, done: int, run: tuple[int, int, int], sets: list[int]
    ) -> Iterator[tuple[int, int, int]]:
        """The states that a run may leave: of the sets kept beside, and of the forward over."""
        i, leaves, owed = run
        done_after = done | 1 << i
        for kept in sets:
            yield kept | leaves, done_after, owed
            if self.evicted and not (done | self.backward) >> i & 1 and not done & self.over:
                yield (kept | leaves) & ~self.evicted, done_after | self.over, owed

    def _begins(self, i: int, done: int) -> bool:
        """Whether op i may run where `done` says, as to the order and the end of the forward."""
        if done >> i & 1:
            return True
        before = (1 << i) - 1
        if self.fixed and done & before != before:
            return False
        if not self.evicted:
            return True
        if self.is_backward[i]:
            return bool(done & self.over)
        return not done & self.over or bool(done & self.backward)

    def without_limit(self, workload: Chain | Graph) -> Simulation:
        """Store-all; where something must be recomputed, any schedule at all."""
        schedule = Schedule.store_all(workload)
        if self.evicted:
            runs = self.run(2**60, fastest=True)
            assert runs is not None, "what may be evicted can run again"
            schedule = Schedule(workload.op_names, runs)
        return simulate(workload, schedule)

    def _is_end(self, live: int, owed: int) -> bool:
        at_end = live & self.results
        return at_end == self.results and all(self.ops[i].optional & at_end for i in _bits(owed))

    def _breaks(self, state: State) -> bool:
        """Whether a bundle is gone that an op still has to read."""
        live, _, owed = state
        return any(not self.ops[i].optional & live for i in _bits(owed))

    def _moves(
        self, state: State, room: int
    ) -> Iterator[tuple[tuple[int, int, int], tuple[list[int], int]]]:
        """((op, tensors it leaves, ops that owe), (sets kept beside, bytes lacking for more)).

        A run that keeps its bundle may have a smaller workspace. A bundle that nobody reads must
        not earn that: the op then owes a read, and the bundle stays until there is one.
        """
        live, done, owed = state
        for i in self.wanted(done)[0]:
            op = self.ops[i]
            is_done = done >> i & 1
            if op.reads & ~live or (op.once and is_done) or not self._begins(i, done):
                continue
            wanted = self.wanted(done | 1 << i)[1]
            writes = op.always | op.optional
            if is_done and not writes & ~live & wanted:
                continue
            still = owed
            for k in _bits(owed):
                if self.ops[k].optional & op.reads:
                    still &= ~(1 << k)
            if still >> i & 1:
                continue
            charged = self.bytes_of(op.reads | op.always)
            others = live & ~op.reads & ~writes & wanted
            optional = op.optional & wanted
            owing = still | 1 << i if op.saving_workspace < op.workspace else still
            for shared, dropped, bundle in self._in_place_ways(op):
                leaves = (op.reads & ~dropped | op.always) & wanted | bundle
                left = room - charged + shared - self.bytes_of(bundle)
                if not bundle:
                    yield (i, leaves, still), self.largest(others, left - op.workspace)
                if optional:
                    sets, missed = self.largest(
                        others | optional & ~bundle, left - op.saving_workspace
                    )
                    saving = [kept for kept in sets if (kept | bundle) & optional]
                    yield (i, leaves, owing), (saving, missed)

    def _in_place_ways(self, op: _OpMasks) -> Iterator[tuple[int, int, int]]:
        """(bytes shared, inputs dropped, optional outputs made) for each choice of take-overs."""
        for choice in range(1 << len(op.takes_over)):
            chosen = [pair for k, pair in enumerate(op.takes_over) if choice >> k & 1]
            shared = sum(min(self.bytes_of(o), self.bytes_of(s)) for o, s in chosen)
            made = sum(output for output, _ in chosen)
            yield shared, sum(source for _, source in chosen), made & op.optional

    def _largest(self, candidates: int, room: int) -> tuple[list[int], int]:
        """The largest subsets that fit in `room`, and how many bytes any larger subset lacks.

        With less additional room than those bytes, the answer would be the same.
        """
        if room < 0:
            return [], -room
        items = sorted(_bits(candidates), key=lambda t: -self.sizes[t])
        total = [0]
        for item in reversed(items):
            total.append(total[-1] + self.sizes[item])
        total.reverse()  # total[k]: bytes of items[k:]
        rest = [sum(1 << item for item in items[k:]) for k in range(len(items) + 1)]
        found: list[int] = []
        lacking = 1 << 62
        stack = [(0, 0, room, 1 << 62)]
        while stack:
            if self._together and not len(found) & 63:
                self._try(1)
            k, kept, left, smallest_out = stack.pop()
            if total[k] <= left:
                if smallest_out > left - total[k]:
                    found.append(kept | rest[k])
                continue
            size = self.sizes[items[k]]
            stack.append((k + 1, kept, left, min(smallest_out, size)))
            if size <= left:
                stack.append((k + 1, kept | 1 << items[k], left - size, smallest_out))
            else:
                lacking = min(lacking, size - left)
        return found, lacking


def _path(parent: dict[State, tuple[State, int]], state: State) -> list[int]:
    runs = []
    while state in parent:
        state, run = parent[state]
        runs.append(run)
    return runs[::-1]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
