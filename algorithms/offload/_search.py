"""The search behind `offload`: starts of several budgets, brought within one, then annealed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.dataflow.op import Op
from schedsim.plans.offloading import Offloading
from schedsim.plans.progress import current
from schedsim.simulation.schedule import Schedule

from ._anneal import LENGTH, MAKESPAN, MOVES, Scratch, anneal, make_scratch, seed_numba
from ._edits import SPARE, repair, tidy
from ._step import make_step
from ._timeline import Step, Trace, evaluate, make_trace

# Temperatures at the beginning and at the end of the first round, in store-all times.
_HOT, _COLD = 2e-3, 1e-6
_COOLER = 0.5  # each round begins cooler than the one before
_ROUNDS = 4
_WALKERS = 6
# Seconds that a byte over budget counts, in store-all times by store-all bytes.
_PRICE = 10.0
_CHUNK_S = 0.05
_TASTES = (0.0, 1.0)

Tokens = NDArray[np.int64]


@dataclass
class _Walker:
    """One annealing, with the best that it has seen."""

    number: int
    trace: Trace
    trial: Trace
    scratch: Scratch
    num: int
    best_tokens: Tokens
    best: NDArray[np.float64]
    excess: int
    moves_per_s: float = 2e4

    @property
    def rank(self) -> tuple[float, float]:
        return (self.best[MAKESPAN], float(self.excess))


class Search:
    """The best sequence within the budget, of many.

    Parameters
    ----------
    graph
        Without copies.
    step
        It, the link and the budget, as the kernels read them.
    enough_s
        No faster one is looked for.
    """

    def __init__(
        self, graph: Graph, step: Step, *, seed: int, num_threads: int, peak_bytes: int
    ) -> None:
        self.graph, self.step, self.seed, self.num_threads = graph, step, seed, num_threads
        self.price = _PRICE * graph.store_all_s / max(1, peak_bytes)
        self.capacity = 6 * graph.num_ops + 4 * SPARE
        self.enough_s = graph.store_all_s * (1 + 1e-12)
        self.stopped = threading.Event()
        self.progress = current()
        self.found: list[tuple[float, int, Tokens]] = []  # makespan or inf, excess, tokens
        self.moves = 0

    def start(self, starts: Iterable[Schedule], until: float) -> None:
        """Brings every start within the budget by copies, as far as they go."""
        longest = self.capacity
        runs = []
        for schedule in starts:
            one = schedule.bind(self.graph).astype(np.int64)
            runs.append(one)
            longest = max(longest, 3 * one.size + 4 * SPARE)
        self.capacity = longest
        trace = make_trace(self.step, longest)
        scratch = make_scratch(self.step, trace)
        seen: set[bytes] = set()
        for one in runs:
            if one.tobytes() in seen:
                continue
            seen.add(one.tobytes())
            for taste in _TASTES:
                if self.found and time.perf_counter() > until:
                    return
                tokens = np.zeros(longest, np.int64)
                tokens[: one.size] = one
                scratch.noise[0] = 0.0
                num, makespan_s, excess = repair(
                    self.step,
                    trace,
                    tokens,
                    one.size,
                    scratch.other,
                    scratch.before,
                    scratch.after,
                    taste,
                    scratch.noise,
                    longest,
                )
                makespan_s = makespan_s if excess <= 0 else math.inf
                self.found.append((makespan_s, int(max(0, excess)), tokens[:num].copy()))
                if excess <= 0 and num == one.size:
                    break  # it fitted as it was
        self.found.sort(key=lambda row: row[:2])

    def consider(self, tokens: Tokens) -> None:
        """Takes up one sequence, copies included, as it is but for what nobody needs."""
        self.capacity = max(self.capacity, 3 * tokens.size + 4 * SPARE)
        trace = make_trace(self.step, self.capacity)
        scratch = make_scratch(self.step, trace)
        line = scratch.current
        line[: tokens.size] = tokens
        num = tidy(self.step, line, tokens.size, scratch.needed, scratch.on_host, scratch.seen)
        makespan_s, excess, _ = evaluate(self.step, line, num, trace)
        if makespan_s < 0:
            return  # not legal
        makespan_s = makespan_s if excess <= 0 else math.inf
        self.found.append((makespan_s, int(max(0, excess)), line[:num].copy()))
        self.found.sort(key=lambda row: row[:2])

    def run(self, until: float, max_moves: int | None) -> bool:
        """Anneals from the best starts until `until`; whether it was interrupted."""
        walkers = [self._walker(i, row) for i, row in enumerate(self.found[:_WALKERS])]
        pool = ThreadPoolExecutor(self.num_threads)
        try:
            active = walkers
            for left in range(_ROUNDS, 0, -1):
                if self._done(walkers):
                    break
                active = sorted(active, key=lambda one: one.rank)
                if left < _ROUNDS:
                    active = active[: max(min(2, len(active)), len(active) // 2)]
                share_s = (until - time.perf_counter()) / left
                share_s *= min(1.0, self.num_threads / len(active))
                heat = _HOT * _COOLER ** (_ROUNDS - left)
                counts = [
                    None if max_moves is None else (max_moves // _ROUNDS + i) // len(active)
                    for i in range(len(active))
                ]
                jobs = [
                    pool.submit(self._walk, one, share_s, heat, count, left)
                    for one, count in zip(active, counts, strict=True)
                ]
                for job in jobs:
                    while not job.done():
                        self.stopped.wait(0.05) if self.stopped.is_set() else time.sleep(0.002)
                    job.result()
        except KeyboardInterrupt:
            self.stopped.set()
            return True
        finally:
            self.stopped.set()
            pool.shutdown(cancel_futures=True)
            for one in walkers:
                self.moves += int(one.best[MOVES])
                if one.best[LENGTH]:
                    row = (float(one.best[MAKESPAN]), 0, one.best_tokens[: int(one.best[LENGTH])])
                    self.found.append(row)
            self.found.sort(key=lambda row: row[:2])
        return False

    def _done(self, walkers: list[_Walker]) -> bool:
        return any(one.best[MAKESPAN] <= self.enough_s for one in walkers)

    def _walker(self, number: int, row: tuple[float, int, Tokens]) -> _Walker:
        makespan_s, excess, tokens = row
        trace = make_trace(self.step, self.capacity)
        scratch = make_scratch(self.step, trace)
        scratch.current[: tokens.size] = tokens
        best_tokens = np.zeros(self.capacity, np.int64)
        best = np.array([np.inf, 0.0, 0.0])
        if excess == 0:
            best[MAKESPAN], best[LENGTH] = makespan_s, tokens.size
            best_tokens[: tokens.size] = tokens
        trial = make_trace(self.step, self.capacity)
        return _Walker(number, trace, trial, scratch, tokens.size, best_tokens, best, excess)

    def _walk(
        self, one: _Walker, seconds: float, heat: float, count: int | None, left: int
    ) -> None:
        """Anneals one walker for so long, or for so many moves, in chunks that can be stopped."""
        seed_numba((self.seed * 1009 + one.number * 31 + left) % 2**32)
        store_all_s = self.graph.store_all_s or 1.0
        if one.best[LENGTH]:  # from its best again, cooler
            one.num = int(one.best[LENGTH])
            one.scratch.current[: one.num] = one.best_tokens[: one.num]
        begun, done, share = time.perf_counter(), 0, 0.0
        while share < 1.0 and not self.stopped.is_set():
            self.progress.report(best_s=one.best[MAKESPAN])
            if one.best[MAKESPAN] <= self.enough_s:
                self.stopped.set()
                break
            if count is None:
                chunk = max(20, int(one.moves_per_s * _CHUNK_S))
                ahead = share + _CHUNK_S / max(seconds, 1e-9)
            else:
                chunk = min(1000, count - done)
                ahead = (done + chunk) / max(count, 1)
                if chunk <= 0:
                    break
            ahead = min(ahead, 1.0)
            chunk_begun = time.perf_counter()
            hot = heat * (_COLD / heat) ** share * store_all_s
            cold = heat * (_COLD / heat) ** ahead * store_all_s
            one.num = anneal(
                self.step,
                one.trace,
                one.trial,
                one.scratch,
                one.num,
                one.best_tokens,
                one.best,
                self.price,
                hot,
                cold,
                chunk,
            )
            done += chunk
            now = time.perf_counter()
            one.moves_per_s = chunk / max(now - chunk_begun, 1e-6)
            share = ahead if count is not None else (now - begun) / max(seconds, 1e-9)
            if not one.best[LENGTH]:
                _, excess, _ = evaluate(self.step, one.scratch.current, one.num, one.trace)
                one.excess = min(one.excess, int(excess)) if excess > 0 else one.excess

    @property
    def best(self) -> tuple[float, Tokens] | None:
        """(makespan in s, tokens) of the fastest that fits."""
        if not self.found or math.isinf(self.found[0][0]):
            return None
        return self.found[0][0], self.found[0][2]


@cache
def load_kernels() -> None:
    """Compile the kernels, or load them, so that this does not count as time to plan in."""
    ops = (Op("a", writes={"x": 2}), Op("b", reads=("x",), writes={"y": 2}), Op("c", reads=("x",)))
    graph = Graph("three", ops)
    step = make_step(graph, 3, Offloading.over("1B/s"))
    search = Search(graph, step, seed=0, num_threads=1, peak_bytes=4)
    search.start([Schedule.store_all(graph)], 0.0)
    search.enough_s = 0.0
    search.run(time.perf_counter() + 1.0, 8)
