"""Local search over recomputation and order: the planner for graphs too large to solve exactly."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph, Op
from schedsim.errors import SchedsimError
from schedsim.plans.least_budget import LeastBudget
from schedsim.plans.plan import Plan, make_plan
from schedsim.plans.progress import current
from schedsim.plans.scope import ANY_SCHEDULE
from schedsim.plans.search import SearchRecord
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from ._cut_search import CutSearch
from ._cuts import Order
from .bounds import check_order, least_memory_bytes, scope_of

# Shares of moves repaired before they count, and temperatures in mean op times at the start of a
# round. Which is better depends on the graph: the walkers take them in turn.
_THOROUGH = (0.3, 0.005)
_HOT = (0.5, 1.0)
_COLD = 0.02  # at the end of a round, of the start
_COOLER = 0.6  # each round begins cooler than the one before

# How far from the file's order the greedy orders may stray; see `greedy_order`.
_PATIENCE = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)

# Between looks at whether to stop: seconds of annealing, or moves where these are counted; and
# evictions of the greedy repair.
_CHUNK_S = 0.02
_COUNTED_CHUNK = 50
_GREEDY_STEPS = 250

# No peak is above this; budgets beyond it would not fit in 64 bits.
_MOST_BYTES = 2**53

# Of the time allowed, that the bound may take beside the walkers.
_BOUND_SHARE = 0.4


def local_search(
    graph: Graph,
    budget_bytes: int,
    *,
    order: Order = "fixed",
    time_limit_s: float = 10.0,
    seed: int = 0,
    num_threads: int | None = None,
    gap: float = 0.0,
    starts: Sequence[Schedule] = (),
    max_moves: int | None = None,
    on_least: Callable[[Simulation], object] | None = None,
) -> Plan:
    """The fastest schedule within `budget_bytes` found by annealing in `time_limit_s`.

    Several walkers start from the graph's order, from its greedy repair (evict at the peak what is
    cheapest to have again) and, where the order is free, from orders of less memory. Each round,
    the worse half drops out. A move inserts, removes or shifts runs, singly or with a greedy repair
    of the peak behind it; live memory is kept up under these edits, so that a move costs
    microseconds. Two kinds of walkers share the time, one of many small moves, one of few
    thorough ones.

    Parameters
    ----------
    order
        ``"fixed"``: the first runs keep the graph's order, recomputations may stand anywhere;
        ``"free"``: any legal sequence.
    time_limit_s
        Stops earlier where the bound is met. Interrupting gives the best plan so far.
    seed
        Of all random choices. As the time allowed is measured, two runs may still differ; see
        `max_moves`.
    num_threads
        Walkers at work at a time; all cores by default. The bound has a thread of its own.
    gap
        To the proven bound, at which to stop.
    starts
        Schedules to start from beside the usual ones. They must be legal and in `order`, and need
        not fit.
    max_moves
        Of all walkers together; the bound is then found before they set out. With one thread, and
        where this ends the search before the time does, runs with the same seed are the same.
    on_least
        Called with the schedule of the least peak seen, simulated, where none fits.

    Returns
    -------
    Plan
        ``optimal`` where it meets the proven bound, else ``feasible`` with its gap. Where none
        fits, its least budget is one at which this search finds a schedule again.

    Raises
    ------
    InvalidScheduleError
        One of `starts` is not legal.
    SchedsimError
        One of `starts` is in another order, or an option is out of its range.

    Notes
    -----
    Memory O(ops + reads) a walker. A move takes O(edits * (reads + writes of an op) * log runs).

    The space is that of Checkmate (Jain et al. 2020), ops computed again before any first run;
    annealing over recomputations after Imanishi et al. 2023 (FastSA), with another
    neighbourhood and objective.

    Examples
    --------
    >>> from schedsim import Graph, Op
    >>> graph = Graph("four", (
    ...     Op("a", time_s=1, writes={"x": 2}),
    ...     Op("b", time_s=1, reads=("x",), writes={"y": 2}),
    ...     Op("c", time_s=1, reads=("y",), writes={"z": 2}),
    ...     Op("d", "backward", time_s=1, reads=("x", "z")),
    ... ))
    >>> local_search(graph, 4, time_limit_s=0.1).schedule
    Schedule(a b c a d)
    """
    _check_options(num_threads, max_moves)
    for start in starts:
        simulate(graph, start)  # refuses what is not legal
        check_order(graph, start, order)
    _load_kernels()
    started = time.perf_counter()
    search = _Search(graph, budget_bytes, order, seed, num_threads, gap, max_moves)
    interrupted = search.run(started + time_limit_s, starts)
    best = search.best()
    lower_bound_s, scope = search.bound_s, scope_of(order)
    least = LeastBudget(None, search.least_op, search.least_bytes)
    if math.isinf(lower_bound_s):
        assert best is None, "there is a schedule, and a proof that there is none"
        if search.least_bytes <= budget_bytes:
            least = LeastBudget(None, None, budget_bytes + 1, scope)
        lower_bound_s, scope = graph.store_all_s, ANY_SCHEDULE
    options: dict[str, Any] = {
        "order": order,
        "time_limit_s": time_limit_s,
    }
    record = SearchRecord(
        num_moves=search.moves, interrupted=interrupted, bound_by=search.bound_how
    )
    if best is None:
        if on_least is not None:
            on_least(search.least())
        if search.lean is not None:
            least = replace(least, found_bytes=search.lean.peak_bytes, op=search.lean.peak_op)
    return make_plan(
        graph,
        budget_bytes,
        best,
        planner="local_search",
        started=started,
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


@dataclass
class _Walker:
    """One annealing, with the best it has seen."""

    steps: Any
    profile: Any
    limit: int
    hot_s: float
    thorough: float
    free: bool
    runs: NDArray[np.int64]
    best: NDArray[np.float64]  # time, number of runs
    price: NDArray[np.float64]
    least_runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    least_bytes: int = 2**62
    moves: int = 0
    chunk: int = 50

    def walk(
        self, seconds: float, stop: Callable[[float], bool], num_moves: int | None = None
    ) -> None:
        """Anneal for so long, or for `num_moves` where that is less."""
        from ._anneal import anneal

        begun = time.perf_counter()
        last = math.inf if num_moves is None else self.moves + num_moves
        first = self.moves
        share = 1.0 if num_moves == 0 else 0.0
        if num_moves:
            self.chunk = min(_COUNTED_CHUNK, num_moves)
        while share < 1.0 and not stop(self.best[0]):
            heat = self.hot_s * _COLD**share
            chunk_begun = time.perf_counter()
            anneal(
                self.steps,
                self.profile,
                self.runs,
                self.best,
                self.limit,
                self.price,
                heat,
                self.chunk,
                self.thorough,
                self.free,
            )
            self.moves += self.chunk
            self.note_least()
            now = time.perf_counter()
            took = max(now - chunk_begun, 1e-6)
            if num_moves is None:
                self.chunk = int(min(4.0 * self.chunk, max(8.0, self.chunk * _CHUNK_S / took)))
            else:
                self.chunk = int(min(_COUNTED_CHUNK, last - self.moves))
                share = (self.moves - first) / num_moves
            share = max(share, (now - begun) / max(seconds, 1e-9))
        self.hot_s *= _COOLER

    def note_least(self) -> None:
        """Keep the schedule of the least peak, for as long as none fits."""
        from ._profile import LARGEST, store_runs

        peak = int(self.profile.tree[1, LARGEST])
        if not self.best[1] and peak < self.least_bytes:
            self.least_bytes = peak
            buffer = np.empty(self.profile.run.shape[0], np.int64)
            self.least_runs = buffer[: store_runs(self.steps, self.profile, buffer)].copy()

    def take(self, runs: NDArray[Any]) -> None:
        """Go on from the schedule `runs`, if there is room for it."""
        from ._profile import load_runs

        if runs.size > self.profile.run.shape[0] // 2:
            return  # no room to search around it
        load_runs(self.steps, self.profile, runs.astype(np.int64))
        self.note_best()

    def note_best(self) -> None:
        """Keep the schedule where it fits and is the fastest so far."""
        from ._profile import LARGEST, store_runs

        if self.profile.tree[1, LARGEST] <= self.limit and self.profile.total_s[0] < self.best[0]:
            self.best[0] = self.profile.total_s[0]
            self.best[1] = store_runs(self.steps, self.profile, self.runs)

    def greedy(self, stopped: Callable[[], bool]) -> None:
        """Evict at the peak until the schedule fits, as far as that goes."""
        from ._moves import repair
        from ._profile import NUM_EDITS

        steps_left = 8 * (self.profile.ends.shape[0] - 2)
        done = False
        while steps_left > 0 and not (done or stopped()):
            steps = min(_GREEDY_STEPS, steps_left)
            steps_left -= steps
            before = self._signature()
            done = repair(
                self.steps, self.profile, self.limit, self.free, np.inf, steps, 0.3, 200, True
            )
            if self._signature() == before:
                break  # it goes no further
        self.profile.counts[NUM_EDITS] = 0
        self.note_best()

    def _signature(self) -> tuple[int, int, float]:
        """Peak, runs and time: an eviction changes one of them, as many runs may share the peak."""
        from ._profile import LARGEST, NUM_SPARE

        profile = self.profile
        peak, spare = int(profile.tree[1, LARGEST]), int(profile.counts[NUM_SPARE])
        return peak, spare, float(profile.total_s[0])

    @property
    def found(self) -> NDArray[np.int64]:
        return self.runs[: int(self.best[1])]

    @property
    def rank(self) -> tuple[int, float]:
        return (0, float(self.best[0])) if self.best[1] else (1, float(self.least_bytes))


class _Search:
    """Walkers, rounds and threads."""

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        order: Order,
        seed: int,
        num_threads: int | None,
        gap: float,
        max_moves: int | None = None,
    ) -> None:
        from ._profile import make_steps

        self.graph, self.order, self.free, self.seed = graph, order, order == "free", seed
        self.budget_bytes = max(-_MOST_BYTES, min(_MOST_BYTES, budget_bytes))
        self.gap, self.max_moves = gap, max_moves
        self.limit = self.budget_bytes - graph.static_bytes
        self.least_bytes, self.least_op = least_memory_bytes(graph)
        self.steps = make_steps(graph.arrays)
        self.num_threads = num_threads or os.cpu_count() or 1
        self.walkers: list[_Walker] = []
        self.stopped = threading.Event()
        self.cuts: CutSearch | None = None
        self.bound_s, self.bound_how = graph.store_all_s, "store-all time"
        self.progress = current()
        self.enough_s = self.bound_s * (1 + 1e-12)
        self.failure: BaseException | None = None
        self.lean: Simulation | None = None

    def run(self, deadline: float, starts: Sequence[Schedule]) -> bool:
        """Search until `deadline`; whether it was interrupted."""
        # After an interrupt nobody waits for it, as its solver cannot be stopped; but it is no
        # daemon: a process that ends while the solver runs is aborted.
        bounding = threading.Thread(target=self._bound, args=(deadline,))
        pool = ThreadPoolExecutor(self.num_threads)
        interrupted = False
        try:
            self._search(pool, bounding, deadline, starts)
            self._end_bound()
            bounding.join()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.stopped.set()
            self._end_bound()
            pool.shutdown(cancel_futures=True)  # walkers end with what they are at
        if self.failure is not None:
            raise self.failure
        return interrupted

    def _search(
        self,
        pool: ThreadPoolExecutor,
        bounding: threading.Thread,
        deadline: float,
        starts: Sequence[Schedule],
    ) -> None:
        lines = self._starts(starts)
        given, usual = lines[: len(starts)], lines[len(starts) :]
        made = [pool.submit(self._make, i, line, False) for i, line in enumerate(given)]
        made += [
            pool.submit(self._make, i, usual[i % len(usual)], True)
            for i in range(max(1, self._num_walkers() - len(given)))
        ]
        # Small graphs are often solved by the time the walkers stand.
        bounding.start()
        for one in made:
            self.walkers.append(one.result())
        if self.max_moves is not None:
            bounding.join()
        if not any(walker.best[1] for walker in self.walkers):
            self._begin_lean(usual)
        active = list(self.walkers)
        num_rounds = max(1, int(np.ceil(np.log2(max(2, len(active))))))
        for left in range(num_rounds, 0, -1):
            if self._done():
                break
            active = sorted(active, key=lambda walker: walker.rank)
            if left < num_rounds:
                active = active[: max(min(self.num_threads, 2), len(active) // 2)]
                self._take_up_bound(active[-1], spare=len(active) > 1)
            seconds = (deadline - time.perf_counter()) / left
            seconds *= min(1.0, self.num_threads / len(active))
            shares = self._shares(len(active), left)
            _wait(
                [
                    pool.submit(one.walk, seconds, self._stop, share)
                    for one, share in zip(active, shares, strict=True)
                ]
            )

    def _begin_lean(self, lines: Sequence[NDArray[Any]]) -> None:
        """Have a walker go on from the schedule of least peak that does not depend on the budget.

        It fits wherever this search has named its peak as the least budget found.
        """
        from ._lean import lean_schedule

        self.lean = lean_schedule(self.graph, self.steps, lines[:2], self.least_bytes, self.free)
        runs = self.lean.schedule.bind(self.graph)
        self.walkers.append(self._make(len(self.walkers), runs, False))

    def _shares(self, num_active: int, rounds_left: int) -> list[int | None]:
        """The moves of each walker in this round."""
        if self.max_moves is None:
            return [None] * num_active
        moves = (self.max_moves - self.moves) // rounds_left
        return [(moves + k) // num_active for k in range(num_active)]

    def _done(self) -> bool:
        return any(self._stop(walker.best[0]) for walker in self.walkers)

    def _stop(self, best_s: float) -> bool:
        self.progress.report(best_s, self.bound_s)
        if best_s <= self.enough_s:
            self.stopped.set()
        return self.stopped.is_set()

    def _bound(self, deadline: float) -> None:
        try:
            self._find_bound(deadline)
        except BaseException as failure:  # raised again by the thread that waits
            self.failure = failure
            self.stopped.set()

    def _find_bound(self, deadline: float) -> None:
        """The bound on time; it may also bring a schedule that meets it."""
        now = time.perf_counter()
        if self.budget_bytes < self.least_bytes:
            self.bound_s, self.bound_how = np.inf, "one op alone needs more"
            self.stopped.set()
            return
        cuts = CutSearch(
            self.graph, self.budget_bytes, self.order, now + _BOUND_SHARE * (deadline - now)
        )
        self.cuts = cuts
        cuts.run()
        self.bound_s, self.bound_how = cuts.bound_s, cuts.how
        self.enough_s = cuts.bound_s * (1 + self.gap) * (1 + 1e-12)
        if cuts.is_done():
            self.stopped.set()

    def _end_bound(self) -> None:
        if self.cuts is not None and self.stopped.is_set():
            self.cuts.until = 0.0  # no further step is begun

    def _take_up_bound(self, walker: _Walker, spare: bool) -> None:
        """Have `walker` go on from what the bound brought: its schedule, if that is better.

        Where the walker can be spared, from the last that was over budget: they are close to the
        bound, and often take little repair.
        """
        cuts = self.cuts
        if cuts is None:
            return
        if cuts.best is not None and cuts.best_s < walker.best[0]:
            walker.take(cuts.best.bind(self.graph))
        elif spare and cuts.suggested:
            walker.take(cuts.suggested[-1].bind(self.graph))
            walker.greedy(self.stopped.is_set)

    def _num_walkers(self) -> int:
        num_ops = self.graph.num_ops
        few = self.num_threads
        return max(few, 8 if num_ops < 300 else 4 if num_ops < 3000 else few)

    def _starts(self, starts: Sequence[Schedule]) -> list[NDArray[Any]]:
        from ._orders import greedy_order

        lines: list[NDArray[Any]] = [schedule.bind(self.graph) for schedule in starts]
        usual = np.arange(self.graph.num_ops, dtype=np.int64)
        lines.append(usual)
        if self.free:
            found = [greedy_order(self.steps, patience) for patience in _PATIENCE]
            names = self.graph.op_names
            peaks = [simulate(self.graph, Schedule(names, line)).peak_bytes for line in found]
            lines += [found[k] for k in np.argsort(peaks, kind="stable")[:3]]
        return lines

    def _make(self, number: int, line: NDArray[Any], greedy: bool) -> _Walker:
        from ._profile import LARGEST, make_profile

        profile = make_profile(self.steps, line, seed=self.seed * 1000 + number)
        unit_s = self.graph.store_all_s / max(1, int(profile.tree[1, LARGEST]))
        unit_s = unit_s or 1.0
        mean_s = self.graph.store_all_s / self.graph.num_ops
        walker = _Walker(
            steps=self.steps,
            profile=profile,
            limit=self.limit,
            hot_s=_HOT[number // 2 % 2] * mean_s or 1e-12,
            thorough=_THOROUGH[number % len(_THOROUGH)],
            free=self.free,
            runs=np.zeros(profile.run.shape[0], np.int64),
            best=np.array([np.inf, 0.0]),
            price=np.array([2.0 * unit_s, 0.02 * unit_s, 1000.0 * unit_s]),
        )
        walker.note_best()
        if greedy and number % 4 in (0, 3) and not self.stopped.is_set():
            walker.greedy(self.stopped.is_set)
        walker.note_least()
        return walker

    @property
    def moves(self) -> int:
        return sum(walker.moves for walker in self.walkers)

    def best(self) -> Schedule | None:
        """The fastest schedule that fits, of the walkers and of the bound."""
        found = [walker for walker in self.walkers if walker.best[1]]
        best = min(found, key=lambda walker: walker.rank, default=None)
        best_s = best.best[0] if best is not None else np.inf
        if self.cuts is not None and self.cuts.best is not None and self.cuts.best_s < best_s:
            return self.cuts.best
        if best is None and self.lean is not None and self.lean.peak_bytes <= self.budget_bytes:
            return self.lean.schedule  # the walkers' account is careful with what may be in place
        return Schedule(self.graph.op_names, best.found) if best is not None else None

    def least(self) -> Simulation:
        """The simulation of the schedule of the least peak, of those that do not fit."""
        walkers = [walker for walker in self.walkers if walker.least_runs.size]
        if not walkers:
            return simulate(self.graph, Schedule.store_all(self.graph))
        least = min(walkers, key=lambda walker: walker.least_bytes)
        return simulate(self.graph, Schedule(self.graph.op_names, least.least_runs))


def _wait(futures: list[Future[None]]) -> None:
    for future in futures:
        while True:  # in slices, so that an interrupt is seen
            try:
                future.result(timeout=0.2)
                break
            except TimeoutError:
                continue


@cache
def _load_kernels() -> None:
    """Compile the kernels, or load them, so that this does not count as time to plan in."""
    from ._orders import greedy_order
    from ._profile import make_profile, make_steps

    ops = (Op("a", writes={"x": 1}), Op("b", reads=("x",)))
    graph = Graph("two", ops)
    steps = make_steps(graph.arrays)
    greedy_order(steps, 0.0)
    line = np.arange(2, dtype=np.int64)
    walker = _Walker(
        steps=steps,
        profile=make_profile(steps, line),
        limit=0,
        hot_s=1.0,
        thorough=0.5,
        free=True,
        runs=np.zeros(64, np.int64),
        best=np.array([np.inf, 0.0]),
        price=np.ones(3),
    )
    walker.take(line)
    walker.greedy(lambda: False)
    walker.walk(0.0, lambda _: False)
