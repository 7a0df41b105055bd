"""The search behind `offload`: starts for several budgets are made to fit one, then annealed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.dataflow.op import Op
from schedsim.plans.effort import Effort
from schedsim.plans.offloading import Offloading
from schedsim.plans.progress import current
from schedsim.simulation.schedule import Schedule

from .._pool import Pool, RoundPart
from ._anneal_copies import (
    LENGTH,
    MAKESPAN,
    MOVES,
    WORK,
    WORK_PER_UNIT,
    Walk,
    anneal,
    seed_numba,
)
from ._linked_graph import link_graph
from ._sequence_edits import SPARE, Scratch, make_scratch, repair, tidy
from ._timeline import LinkedGraph, Trace, evaluate, make_trace

# Temperatures at the start of the first round and at the end of each, in store-all times.
_HOT, _COLD = 2e-3, 1e-6
_COOLER = 0.5  # each round begins cooler than the one before
_ROUNDS = 4
_WALKERS = 6
# Seconds that a byte over budget costs, in store-all times per store-all bytes.
_PRICE = 10.0
_TASTES = (0.0, 1.0)
# Tokens that the repair of a start times before it looks again at whether to stop.
_REPAIR_TOKENS = 200_000
_MOST_MOVES = 1000  # at one temperature

Tokens = NDArray[np.int64]


@dataclass
class OffloadWalker:
    """One annealing, with the best sequence that it has seen."""

    number: int
    seed: int
    linked: LinkedGraph
    store_all_s: float
    price: float
    trace: Trace
    trial: Trace
    scratch: Scratch
    num: int
    best_tokens: Tokens
    excess: int
    best: NDArray[np.float64] = field(default_factory=lambda: np.array([np.inf, 0.0, 0.0, 0.0]))
    hot: float = _HOT

    @cached_property
    def _walk(self) -> Walk:
        return Walk(
            self.linked,
            self.trace,
            self.trial,
            self.scratch,
            self.best_tokens,
            self.best,
            self.price,
        )

    @property
    def best_s(self) -> float:
        return float(self.best[MAKESPAN])

    @property
    def rank(self) -> tuple[int, float]:
        return (0, self.best_s) if self.best_s < math.inf else (1, float(self.excess))

    def begin(self, number: int) -> None:
        """Begin a round from the best sequence again, cooler than the round before."""
        # The kernels' generator belongs to the thread, which runs one walker until the round ends.
        seed_numba((self.seed * 1009 + self.number * 31 + _ROUNDS - number) % 2**32)
        self.hot = _HOT * _COOLER**number
        if self.best[LENGTH]:
            self.num = int(self.best[LENGTH])
            self.scratch.current[: self.num] = self.best_tokens[: self.num]

    def anneal(self, share: float, work: float, most_moves: int) -> tuple[float, int]:
        moves, done = float(self.best[MOVES]), float(self.best[WORK])
        self.num = anneal(
            self._walk,
            self.num,
            self.hot * (_COLD / self.hot) ** share * self.store_all_s,
            min(_MOST_MOVES, most_moves),
            done + work * WORK_PER_UNIT,
        )
        if not self.best[LENGTH]:
            _, excess, _ = evaluate(self.linked, self.scratch.current, self.num, self.trace)
            self.excess = min(self.excess, int(excess)) if excess > 0 else self.excess
        return (self.best[WORK] - done) / WORK_PER_UNIT, int(self.best[MOVES] - moves)


class OffloadSearch:
    """The search for the best sequence within the budget, with many walkers.

    Parameters
    ----------
    graph
        The graph without copies.
    linked
        The graph, the link and the budget, as the kernels read them.
    enough_s
        A makespan at which the search stops.
    """

    def __init__(
        self, graph: Graph, linked: LinkedGraph, *, seed: int, num_threads: int, peak_bytes: int
    ) -> None:
        self.graph, self.linked, self.seed, self.num_threads = graph, linked, seed, num_threads
        self.price = _PRICE * graph.store_all_s / max(1, peak_bytes)
        self.capacity = 6 * graph.num_ops + 4 * SPARE
        self.enough_s = graph.store_all_s * (1 + 1e-12)
        self.progress = current()
        self.found: list[tuple[float, int, Tokens]] = []  # makespan or inf, excess, tokens
        self.moves = 0

    def start(self, starts: Iterable[Schedule], effort: Effort) -> None:
        """Bring every start within the budget by copies, as far as copies and `effort` allow.

        The first start is always finished, unless the user interrupts.
        """
        longest = self.capacity
        runs = []
        for schedule in starts:
            one = schedule.bind(self.graph).astype(np.int64)
            runs.append(one)
            longest = max(longest, 3 * one.size + 4 * SPARE)
        self.capacity = longest
        trace = make_trace(self.linked, longest)
        scratch = make_scratch(self.linked, trace)
        seen: set[bytes] = set()
        for one in runs:
            if one.tobytes() in seen:
                continue
            seen.add(one.tobytes())
            for taste in _TASTES:
                if self.found and effort.is_over():
                    break
                tokens = np.zeros(longest, np.int64)
                tokens[: one.size] = one
                scratch.noise[0] = 0.0
                num, makespan_s, excess = self._repaired(
                    tokens, one.size, trace, scratch, taste, effort
                )
                makespan_s = makespan_s if excess <= 0 else math.inf
                self.found.append((makespan_s, int(max(0, excess)), tokens[:num].copy()))
                if excess <= 0 and num == one.size:
                    break  # it fitted without copies
        self.found.sort(key=lambda row: row[:2])

    def _repaired(
        self,
        tokens: Tokens,
        num: int,
        trace: Trace,
        scratch: Scratch,
        taste: float,
        effort: Effort,
    ) -> tuple[int, float, int]:
        """(tokens, makespan in s, bytes over budget) after a repair by copies."""
        while True:
            before, steps = num, max(1, _REPAIR_TOKENS // num)
            num, makespan_s, excess = repair(self.linked, trace, tokens, num, scratch, taste, steps)
            effort.spend(num * (num - before + 2) / WORK_PER_UNIT)
            if makespan_s < 0 or excess <= 0 or num == before or num + SPARE > tokens.size:
                return num, makespan_s, excess
            if effort.cancelled or (self.found and effort.is_over()):
                return num, makespan_s, excess

    def consider(self, tokens: Tokens) -> None:
        """Take up one sequence, copies included, without the tokens that nothing needs."""
        self.capacity = max(self.capacity, 3 * tokens.size + 4 * SPARE)
        trace = make_trace(self.linked, self.capacity)
        scratch = make_scratch(self.linked, trace)
        line = scratch.current
        line[: tokens.size] = tokens
        num = tidy(self.linked, line, tokens.size, scratch)
        makespan_s, excess, _ = evaluate(self.linked, line, num, trace)
        if makespan_s < 0:
            return  # not legal
        makespan_s = makespan_s if excess <= 0 else math.inf
        self.found.append((makespan_s, int(max(0, excess)), line[:num].copy()))
        self.found.sort(key=lambda row: row[:2])

    def run(self, effort: Effort) -> None:
        """Anneal from the best starts until `effort` is spent or an interrupt ends the search."""
        walkers = [self._walker(i, row) for i, row in enumerate(self.found[:_WALKERS])]
        with Pool[OffloadWalker](effort, self.num_threads, self.enough_s) as pool:
            try:
                active = walkers
                for number in range(_ROUNDS):
                    best_s = min((one.best_s for one in walkers), default=math.inf)
                    if not active or best_s <= self.enough_s or effort.is_over(best_s):
                        break
                    active = sorted(active, key=lambda one: one.rank)
                    if number:
                        active = active[: max(min(2, len(active)), len(active) // 2)]
                    pool.walk(active, RoundPart(number), 1 / (_ROUNDS - number))
                    if pool.winner is not None:
                        break
            except KeyboardInterrupt:
                effort.cancel()
        if pool.moves and not effort.counted:
            effort.note_clock()
        self.moves += pool.moves
        ended = walkers if pool.winner is None else [pool.winner]
        for one in ended:
            if one.best[LENGTH]:
                row = (one.best_s, 0, one.best_tokens[: int(one.best[LENGTH])])
                self.found.append(row)
        self.found.sort(key=lambda row: row[:2])

    def _walker(self, number: int, row: tuple[float, int, Tokens]) -> OffloadWalker:
        makespan_s, excess, tokens = row
        trace, trial = (
            make_trace(self.linked, self.capacity),
            make_trace(self.linked, self.capacity),
        )
        scratch = make_scratch(self.linked, trace)
        scratch.current[: tokens.size] = tokens
        best_tokens = np.zeros(self.capacity, np.int64)
        store_all_s = self.graph.store_all_s or 1.0
        walker = OffloadWalker(
            number,
            self.seed,
            self.linked,
            store_all_s,
            self.price,
            trace,
            trial,
            scratch,
            tokens.size,
            best_tokens,
            excess,
        )
        if excess == 0:
            walker.best[MAKESPAN], walker.best[LENGTH] = makespan_s, tokens.size
            best_tokens[: tokens.size] = tokens
        return walker

    @property
    def best(self) -> tuple[float, Tokens] | None:
        """(makespan in s, tokens) of the fastest sequence that fits."""
        if not self.found or math.isinf(self.found[0][0]):
            return None
        return self.found[0][0], self.found[0][2]


@cache
def load_kernels() -> None:
    """Compile or load the kernels beforehand, so that this does not count as planning time."""
    ops = (Op("a", writes={"x": 2}), Op("b", reads=("x",), writes={"y": 2}), Op("c", reads=("x",)))
    graph = Graph("three", ops)
    linked = link_graph(graph, 3, Offloading.over("1B/s"))
    search = OffloadSearch(graph, linked, seed=0, num_threads=1, peak_bytes=4)
    effort = Effort(1.0, moves=8)
    search.start([Schedule.store_all(graph)], effort)
    search.enough_s = 0.0
    search.run(effort)
