"""The search behind `local_search`: walkers, and the bound beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph
from schedsim.kernels.compiled import at_hand
from schedsim.plans.effort import Effort
from schedsim.simulation.schedule import Schedule
from schedsim.simulation.simulator import Simulation, simulate

from .._pool import Pool, RoundPart
from ._anneal import walk
from ._cut_search import CutSearch
from ._cut_table import Order
from ._lean import lean_schedule, lean_work, leanest_schedule, leanest_work
from ._merge_search import MergeSearch
from ._packed_graph import pack_graph
from ._population import Population
from ._priced_rounds import PricedRounds
from ._seeds import saved_bytes_start
from ._walker import ALONE, NUM_KINDS, SMALL_OPS, GraphWalker, Kind, num_walkers
from .bounds import least_memory_bytes
from .free_order import greedy_orders

# No peak is above this; larger budgets would not fit in 64 bits.
_MOST_BYTES = 2**53

# The share of the effort that is spent on the bound: where the effort counts work, and where it
# is seconds.
_BOUND_WORK, _BOUND_SHARE = 0.3, 0.4

# Where moves end the search, the bound may take so much work without any, and another unit for so
# many moves; 2,000 moves on 600 ops take a tenth of a second. From 20,000 moves on, the bound takes
# all that an effort of 20 grants it.
_BOUND_OF_NO_MOVES, _MOVES_PER_UNIT = 0.2, 3_400

# The share of the first round after which the walkers meet for the first time.
_FIRST_MEETING = 0.1

# From so many ops on, a scout comes before the walkers where none of them fits, with that share of
# the effort and of the usual temperature of the peak: it is within most limits after a fifth of the
# work that others take. And the bound begins when the walkers have met for the first time. On fewer
# ops the others are in time, and where memory is tight they need all of the work. Where there is
# one start alone, one walker has all of the work (on fewer ops, of the later rounds): two would
# each end half as deep.
_SLOW_OPS, _SCOUTED, _SCOUT_WARM = 3000, 0.06, 0.2

# From so many ops on, where no walker fits at first, bytes above the limit are summed over all runs
# from the beginning, and half of the walkers go on where none fits when they meet; on fewer ops,
# only from the second meeting on. Where plans are found without the sum, it makes them no better.
_SUMMED_FROM = 500

# More than any schedule takes, and finite.
_ANY_S = 1e300

# A schedule that the bound suggests is worth a repair up to so many times the budget.
_CLOSE = 1.1

# Where nothing fits yet when the bound is there, on fewer than so many ops, walkers start from so
# many of its schedules, however far these are: from those that take about as long as the bound. For
# its greedy repair each may take that share of the work left.
_REPAIRED_OPS, _FROM_BOUND, _REPAIRED = 300, 2, 0.05

# From so many ops on, one walker starts from what is best for the forward to save, at that share of
# the usual temperature: from hotter starts it loses what it began with. And about the work of that
# start for each op.
_MANY_OPS, _COOL, _SAVED_PER_OP = 300, 0.1, 2e-5

# The most of what is left of the work that the leanest schedule may take for a walker's start.
_LEANEST_SHARE = 0.2

# On graphs of the first numbers of ops a population comes before the other walkers; on those of the
# second where none of these fits when they meet again. Some larger graphs need long annealings.
_POPULATED_OPS, _POPULATED_IN_NEED = range(60, SMALL_OPS), range(SMALL_OPS, 500)

# Where first runs have a fixed order, on graphs of these numbers of ops, the fastest schedules of
# the walkers are merged in the end, at most so many, with that share of the walkers' work. Where
# more than a share of it is left, an annealing goes on from there, at that share of the first
# temperature.
_MERGED_OPS, _MERGED_LINES, _MERGED = range(60, 500), 4, 0.2
_WORTH_ANNEALING, _AFTER_MERGE = 0.1, 0.15


class GraphSearch:
    """The search itself: rounds of walkers, and the bound computed beside them."""

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        order: Order,
        effort: Effort,
        *,
        seed: int,
        num_threads: int | None,
        gap: float,
    ) -> None:
        self.graph, self.order, self.free, self.seed = graph, order, order == "free", seed
        self.budget_bytes = max(-_MOST_BYTES, min(_MOST_BYTES, budget_bytes))
        self.gap, self.effort = gap, effort
        self.limit = self.budget_bytes - graph.static_bytes
        self.least_bytes, self.least_op = least_memory_bytes(graph)
        self.packed = pack_graph(graph.arrays)
        self.num_threads = num_threads or os.cpu_count() or 1
        self.walkers: list[GraphWalker] = []
        self.bound_s, self.bound_how = graph.store_all_s, "store-all time"
        self.cuts: CutSearch | None = None
        self._bound_work = 0.0
        self._joined = False  # whether the bound has ended and its result is taken in
        self.moves = 0
        self._winner: GraphWalker | None = None
        self._has_one_start = False  # whether all walkers start from the graph's order
        self._solved = False  # whether the bound's own schedule is the answer
        self._failure: BaseException | None = None
        self.lean: Simulation | None = None
        self.scout: GraphWalker | None = None
        self.first: GraphWalker | None = None  # a short one, whose schedule no other goes on from
        self.merger: MergeSearch | None = None
        # After this meeting without a plan, bytes above the limit are summed.
        self._met_in_vain = 0 if graph.num_ops >= _SUMMED_FROM else 1

    def run(self, starts: Sequence[Schedule]) -> None:
        """Search until the effort is spent, or nothing better can be found."""
        if self.budget_bytes < self.least_bytes:
            self.bound_s, self.bound_how = np.inf, "one op alone needs more"
        with Pool[GraphWalker](self.effort, self.num_threads, self._enough_s()) as pool:
            try:
                lines = self._starts(starts)
                given, usual = lines[: len(starts)], lines[len(starts) :]
                self._search(pool, starts, given, usual)
                if self.none_fits() and not self._solved:
                    self.lean = self._find_lean(leanest_schedule, usual[:2])
            except KeyboardInterrupt:
                self.effort.cancel()
            except BaseException:
                pool.halted.set()  # or the bound's thread would go on, with nobody to wait for it
                raise
            finally:
                if self.cuts is not None and pool.halted.is_set():
                    self.cuts.halt()
                self.moves, self._winner = pool.moves, pool.winner
                if self._solved and self.effort.counted:
                    self.moves = 0  # how far the walkers came until then is chance
        if self._failure is not None:
            raise self._failure
        if not self.effort.counted and not self._solved and self.moves:
            self.effort.note_clock()

    def _enough_s(self) -> float:
        return self.bound_s * (1 + self.gap) * (1 + 1e-12)

    def _search(
        self,
        pool: Pool[GraphWalker],
        starts: Sequence[Schedule],
        given: list[NDArray[Any]],
        usual: list[NDArray[Any]],
    ) -> None:
        # The bound is in no race with the walkers here: it solves many small graphs before they
        # start.
        bound = None
        if np.isfinite(self.bound_s):
            bound = self.effort.part(self._share_of_bound(), watched=_BOUND_SHARE)
            self.cuts = CutSearch(self.graph, self.budget_bytes, self.order, bound)
            self.cuts.needs()
            self.cuts.knapsacks()
            self.learn(pool)
        # After an interrupt nobody waits for the bound's thread, because its solver cannot be
        # stopped; but it is no daemon: a process that ends while the solver runs would be aborted.
        bounding = threading.Thread(target=self._find_bound, args=(pool,))
        before = self.effort.spent
        # A graph that the bound solves needs no walkers, whose kernels take seconds to compile.
        first = bound is not None and self.effort.counted and not at_hand(walk)
        if first and not self.is_done(pool):
            bounding.start()
            _wait_for(bounding)
            if self._solved:
                self.join(pool, bounding)
                self._solved_work = before + self._bound_work
                return
        self.walkers = pool.all_of(self._makers(given, usual, starts))
        if bound is None or self.is_done(pool):
            return
        is_slow = self.effort.counted and self.graph.num_ops >= _SLOW_OPS
        if bounding.ident is None and not is_slow:
            bounding.start()
        if is_slow and self.effort.moves is None and self.none_fits():
            self._scout(pool, usual[0])
        try:
            priced = PricedRounds(self, pool, bounding, usual[0])
            if not (self._has_one_start and priced.run()):
                active = list(self.walkers)
                self._populate(pool, usual[:2], _POPULATED_OPS)
                if pool.winner is None and not self.is_done(pool):
                    self._rounds(pool, bounding, usual[:2], active)
        finally:
            if bounding.is_alive() and not self.effort.counted:
                pool.halted.set()
                if self.cuts is not None:
                    self.cuts.halt()
        self.join(pool, bounding)
        if self._solved and self.effort.counted:
            # How much of the walkers' work was done is chance, too: no later search may depend on
            # it through what is left of the effort.
            self.effort.spent = before + self._bound_work

    def _share_of_bound(self) -> float:
        """The share of what is left that the bound may take: few moves ask for little of it."""
        if not self.effort.counted:
            return _BOUND_SHARE
        if self.effort.moves is None or not self.effort.left:
            return _BOUND_WORK
        few = _BOUND_OF_NO_MOVES + self.effort.moves / _MOVES_PER_UNIT
        return min(_BOUND_WORK, few / self.effort.left)

    def _scout(self, pool: Pool[GraphWalker], line: NDArray[Any]) -> None:
        """Look for any schedule that fits, so that there is one soon; the walkers do better later.

        They begin warmer, which takes them longer and ends lower.
        """
        self.scout = self.make(0, line)
        self.scout.warm_bytes *= _SCOUT_WARM
        self.walk_until_any_fits(pool, self.scout, RoundPart(0, 0.0, _FIRST_MEETING), _SCOUTED)

    def walk_until_any_fits(
        self, pool: Pool[GraphWalker], walker: GraphWalker, part: RoundPart, share: float
    ) -> None:
        """Have `walker` anneal until it has any schedule that fits, which ends no search."""
        pool.enough_s = _ANY_S
        pool.walk([walker], part, share)
        pool.winner, pool.enough_s = None, self._enough_s()
        pool.progress.report(walker.best_s)

    def none_fits(self) -> bool:
        return _none_of(self._all())

    @property
    def _one_alone(self) -> bool:
        """Whether one walker is better than several: by the clock each has a thread of its own."""
        return self._has_one_start and self.effort.counted

    def _all(self) -> list[GraphWalker]:
        return self.walkers if self.scout is None else [*self.walkers, self.scout]

    def _bests(self) -> list[GraphWalker | MergeSearch]:
        more = [one for one in (self.first, self.merger) if one is not None]
        return [*self._all(), *more]

    def _find_lean(
        self, kind: Callable[..., Simulation], lines: Sequence[NDArray[Any]]
    ) -> Simulation:
        """The schedule of little peak, of that kind, that does not depend on the budget.

        The leanest fits at every budget at which this search has named its peak as the least budget
        found. Where the time is up before, it is the best of what was complete by then.
        """
        return kind(
            self.graph,
            self.packed,
            lines,
            self.least_bytes,
            self.free,
            is_over=self.effort.out_of_time,
        )

    def _begin_lean(self, pool: Pool[GraphWalker], job: Future[Simulation]) -> list[GraphWalker]:
        """A walker that starts from that schedule, where still none fits."""
        lean = self._take_lean(pool, job)
        return [self._go_on_from(lean)] if self.none_fits() else []

    def _take_lean(self, pool: Pool[GraphWalker], job: Future[Simulation]) -> Simulation:
        self.lean = pool.wait(job)
        self.effort.spend(lean_work(self.graph))
        return self.lean

    def begin_leanest(
        self, pool: Pool[GraphWalker], lines: Sequence[NDArray[Any]]
    ) -> list[GraphWalker]:
        """A walker that starts from the leanest schedule, where that fits and nothing else does."""
        if not self.none_fits() or self.effort.moves is not None:
            return []
        if leanest_work(self.graph) > _LEANEST_SHARE * self.effort.left:
            return []
        self.lean = pool.wait(pool.submit(partial(self._find_lean, leanest_schedule, lines)))
        self.effort.spend(leanest_work(self.graph))
        fits = self.lean.peak_bytes <= self.budget_bytes
        return [self._go_on_from(self.lean)] if fits else []

    def _go_on_from(self, lean: Simulation) -> GraphWalker:
        walker = self.make(len(self.walkers), lean.schedule.bind(self.graph))
        walker.begin(0)  # perhaps in the middle of a round
        self.walkers.append(walker)
        return walker

    def _rounds(
        self,
        pool: Pool[GraphWalker],
        bounding: threading.Thread,
        lines: Sequence[NDArray[Any]],
        active: list[GraphWalker],
    ) -> None:
        """Rounds of walkers; one on the lean schedule of `lines` joins where none fits at first."""
        if self._met_in_vain == 0 and self.none_fits():
            for walker in active:
                walker.sum_excess()
        num_rounds = max(1, int(np.ceil(np.log2(max(2, len(active))))))
        # In the first round the walkers meet on the way, to take in the bound and to learn what
        # fits.
        segments = [RoundPart(0, 0.0, _FIRST_MEETING), RoundPart(0, _FIRST_MEETING, 0.4)]
        segments += [RoundPart(0, 0.4, 1.0)]
        segments += [RoundPart(number) for number in range(1, num_rounds)]
        few = 2 if self.effort.counted else min(self.num_threads, 2)
        alone = self._one_alone and self.graph.num_ops >= _SUMMED_FROM
        left = sum(segment.high - segment.low for segment in segments)
        kept = left * _MERGED / (1.0 - _MERGED) if self._may_merge() else 0.0  # for a merge
        lean = None
        for at, segment in enumerate(segments):
            if segment.number and segment.low == 0.0:
                active += self.begin_leanest(pool, lines)
                active = self._fewer(active, 1 if _none_of(active) else few)
                if alone and not self.none_fits():
                    active = active[:1]
            if at == 2 and (found := self._from_bound(pool)):
                active += found
            elif at > 1:
                worst = max(active, key=lambda walker: walker.rank)
                self._take_up_bound(worst, spare=len(active) > 1)
            if at == 1 and self._is_hard():
                if lean is not None:
                    self._take_lean(pool, lean)
                PricedRounds(self, pool, bounding, lines[0]).come_down()
                return
            width = segment.high - segment.low
            if at + 1 == len(segments) and len(self._to_merge()) < 2:
                kept = 0.0
            pool.walk(active, segment, width / (left + kept))
            left -= width
            if bounding.ident is None:
                bounding.start()
            if lean is not None:
                active += self._begin_lean(pool, lean)
                lean = None
            if at == 1 and self.none_fits():
                active += self._populate(pool, lines, _POPULATED_IN_NEED)
            if at == self._met_in_vain and _none_of(active):
                # What is hard to fit takes long annealings, warm ones and cool ones.
                active = [*self._fewer(active[::2], 1), *self._fewer(active[1::2], 1)]
                for walker in active:
                    walker.sum_excess()
            if at == 0 and 2 * sum(walker.best_s < np.inf for walker in active) > len(active):
                for walker in active:
                    walker.move_as_usual()
            if at == 0 and self.none_fits():
                lean = pool.submit(partial(self._find_lean, lean_schedule, lines))
            if at and self.effort.counted:
                self.join(pool, bounding)
            if at or not self.effort.counted:
                self.learn(pool)
                done = self.is_done(pool)
            else:  # how far the bound has come by now is chance
                done = self.effort.is_over(min(walker.best_s for walker in self._all()))
            if pool.winner is not None or done:
                if lean is not None:
                    self.lean = pool.wait(lean)
                return
        if kept:
            self._merge(pool, active)

    def _populate(
        self, pool: Pool[GraphWalker], lines: Sequence[NDArray[Any]], sizes: range
    ) -> list[GraphWalker]:
        """The best walker of a population, on graphs of these numbers of ops."""
        if self.graph.num_ops not in sizes or self.effort.moves is not None:
            return []
        found = Population(self, pool).run(lines)
        self.walkers += found
        return found

    def _may_merge(self) -> bool:
        """Whether walkers' schedules are to be merged: they have one order, and their number."""
        by_moves = self.effort.moves is not None
        return not (self.free or by_moves) and self.graph.num_ops in _MERGED_OPS

    def _to_merge(self) -> list[NDArray[np.int64]]:
        """The fastest schedules of different walkers that fit, the fastest first."""
        found = [walker for walker in self._all() if walker.best_s < np.inf]
        lines = [walker.best_runs for walker in sorted(found, key=lambda walker: walker.rank)]
        return lines[:_MERGED_LINES]

    def _merge(self, pool: Pool[GraphWalker], active: list[GraphWalker]) -> None:
        """Look for better mixtures of what the walkers came to, and anneal where none is left."""
        self.merger = merger = MergeSearch(
            self.graph, self.budget_bytes, self._to_merge(), seed=self.seed
        )
        before = self.effort.left
        job = pool.submit(
            partial(merger.run, self.effort, pool.enough_s, report=pool.progress.report)
        )
        pool.wait(job)
        if self.effort.left < _WORTH_ANNEALING * before or self.is_done(pool):
            return
        for walker in active:
            walker.take(merger.best_runs)
            walker.hot_s = _AFTER_MERGE * walker.first_hot_s
        pool.walk(active, RoundPart(0), 1.0)

    def _fewer(self, active: list[GraphWalker], few: int) -> list[GraphWalker]:
        """The better half, and at least `few`."""
        return sorted(active, key=lambda walker: walker.rank)[: max(few, len(active) // 2)]

    def join(self, pool: Pool[GraphWalker], bounding: threading.Thread) -> None:
        """Wait for the bound, so that its result comes in at the same place every time."""
        _wait_for(bounding)
        assert self.cuts is not None
        self._joined = True
        self._bound_work += self.cuts.effort.spent
        self.effort.spend(self.cuts.effort.spent)
        self.cuts.effort.spent = 0.0
        self.learn(pool)

    def is_done(self, pool: Pool[GraphWalker]) -> bool:
        best_s = min((one.best_s for one in self._bests()), default=np.inf)
        # Where work is counted, it must not matter how early the bound ends.
        if self.cuts is not None and (self._joined or not self.effort.counted):
            best_s = min(best_s, self.cuts.best_s)
        return self._solved or best_s <= pool.enough_s or self.effort.is_over(best_s)

    def _find_bound(self, pool: Pool[GraphWalker]) -> None:
        assert self.cuts is not None
        try:
            self.cuts.solve_milps()
            # A bound that proves that nothing fits ends no round: the least peak is looked for.
            if not self.effort.counted:
                self.learn(pool)
            if self.cuts.is_done() and (self.cuts.best is not None or not self.effort.counted):
                self._solved = self.cuts.best is not None
                pool.halted.set()
        except BaseException as failure:  # raised again by the thread that waits
            self._failure = failure
            pool.halted.set()

    def learn(self, pool: Pool[GraphWalker]) -> None:
        """Take in what the bound has proven."""
        cuts = self.cuts
        if cuts is None or cuts.bound_s <= self.bound_s:
            return
        self.bound_s, self.bound_how = cuts.bound_s, cuts.how
        pool.progress.report(bound_s=cuts.bound_s)
        pool.enough_s = self._enough_s()

    def _take_up_bound(self, walker: GraphWalker, spare: bool) -> None:
        """Make `walker` go on from the bound's schedule, if that is better than the walker's own.

        A walker that can be spared goes on from the bound's last schedule over budget instead: such
        schedules are close to the bound, and often need little repair.
        """
        cuts = self.cuts
        if cuts is None:
            return
        if cuts.best is not None and cuts.best_s < walker.best_s:
            walker.take(cuts.best.bind(self.graph))
        elif spare and cuts.suggested:
            close = simulate(self.graph, cuts.suggested.pop())
            if close.peak_bytes <= _CLOSE * self.budget_bytes:
                walker.take(close.schedule.bind(self.graph), greedy=True)

    def _is_hard(self) -> bool:
        """Whether none of many walkers has come within the limit by their first meeting."""
        if not self.effort.counted or self.effort.moves is not None:
            return False
        return self._met_in_vain == 0 and self.none_fits()

    def near_bound(self) -> list[NDArray[Any]]:
        """The schedules of the bound, those first that take about as long as it; none if one fits.

        Schedules of weaker bounds repeat too little to be of use.
        """
        cuts = self.cuts
        if cuts is None or cuts.best is not None:
            return []
        suggested = list(dict.fromkeys(cuts.suggested))
        suggested.sort(key=lambda one: abs(simulate(self.graph, one).makespan_s - self.bound_s))
        return [one.bind(self.graph) for one in suggested]

    def _from_bound(self, pool: Pool[GraphWalker]) -> list[GraphWalker]:
        """Where nothing fits: walkers on schedules of the bound, after a greedy repair of each.

        Such schedules keep and repeat about the right tensors, and are over budget where repeated
        runs need memory.
        """
        if self.graph.num_ops >= _REPAIRED_OPS or not self.none_fits():
            return []
        lines = self.near_bound()[:_FROM_BOUND]
        found = pool.all_of(
            [
                partial(self.make, k * NUM_KINDS, line, greedy=True)  # thorough ones
                for k, line in enumerate(lines)
            ]
        )
        most = pool.per_job(_REPAIRED * len(found) * self.effort.left, max(1, len(found)))
        for work in pool.all_of([partial(walker.greedy, most) for walker in found]):
            self.effort.spend(work)
        for walker in found:
            walker.begin(0)  # in the middle of a round
        self.walkers += found
        return found

    def _starts(self, starts: Sequence[Schedule]) -> list[NDArray[Any]]:
        lines: list[NDArray[Any]] = [schedule.bind(self.graph) for schedule in starts]
        usual = np.arange(self.graph.num_ops, dtype=np.int64)
        lines.append(usual)
        if self.free:
            found = greedy_orders(self.graph, self.packed)
            lines += [simulation.schedule.bind(self.graph) for simulation in found[:3]]
        return lines

    def _makers(
        self, given: list[NDArray[Any]], usual: list[NDArray[Any]], starts: Sequence[Schedule]
    ) -> Sequence[Callable[[], GraphWalker]]:
        """What makes each walker: on the given lines, on what to save, and on the usual lines."""
        makers = [partial(self.make, i, line) for i, line in enumerate(given)]
        if (saved := self._saved(starts)) is not None:
            makers.append(partial(self.make, len(given), saved, cool=_COOL))
        self._has_one_start = not (makers or self.free)
        if self._one_alone and self.graph.num_ops >= _SLOW_OPS:
            return [partial(self.make, 0, usual[0], greedy=True, kind=ALONE)]
        few = 2 if self.effort.counted else self.num_threads
        count = max(max(len(given), saved is not None) + 1, num_walkers(self.graph.num_ops, few))
        makers += [
            partial(self.make, i, usual[i % len(usual)], greedy=True)
            for i in range(count - len(makers))
        ]
        return makers

    def _saved(self, starts: Sequence[Schedule]) -> NDArray[Any] | None:
        """The runs of the best choice of what the forward saves, where it fits and is worth it.

        On thousands of ops it is there before the walkers have come within the limit, and often
        faster than what they find in seconds; small graphs need no such help.
        """
        if self.graph.num_ops < _MANY_OPS or not np.isfinite(self.bound_s):
            return None
        if self.effort.is_over():
            return None
        self.effort.spend(_SAVED_PER_OP * self.graph.num_ops)
        saved = saved_bytes_start(self.graph, self.budget_bytes)
        if saved is None:
            return None
        fits = [one for one in starts if self._fits(one)]
        fastest_s = min((simulate(self.graph, one).makespan_s for one in fits), default=np.inf)
        return saved.runs if saved.makespan_s < fastest_s else None

    def _fits(self, schedule: Schedule) -> bool:
        return simulate(self.graph, schedule).peak_bytes <= self.budget_bytes

    def make(
        self,
        number: int,
        line: NDArray[Any],
        greedy: bool = False,
        cool: float = 1.0,
        kind: Kind | None = None,
    ) -> GraphWalker:
        """A walker on `line`, which begins with the greedy repair if `greedy`.

        It begins at that share `cool` of its kind's temperature.
        """
        walker = GraphWalker.of(
            self.graph,
            self.packed,
            line,
            number=number,
            seed=self.seed,
            rules=(self.limit, self.free),
            kind=kind,
        )
        walker.hot_s *= cool
        if not greedy:
            walker.end_greedy()
        walker.note_least()
        return walker

    def best(self) -> Schedule | None:
        """The fastest schedule that fits, of the walkers' and the bound's."""
        cuts = self.cuts
        if self._solved and cuts is not None:
            return cuts.best
        found = [one for one in self._bests() if one.best_s < np.inf]
        best = self._winner or min(found, key=lambda one: one.rank, default=None)
        best_s = best.best_s if best is not None else np.inf
        if cuts is not None and cuts.best is not None and cuts.best_s < best_s:
            return cuts.best
        if best is None and self.lean is not None and self.lean.peak_bytes <= self.budget_bytes:
            return self.lean.schedule  # walkers count no storage taken over that may not be
        return Schedule(self.graph.op_names, best.best_runs) if best is not None else None

    def least(self) -> Simulation:
        """The simulation of the schedule of the least peak, of the schedules that do not fit."""
        walkers = [walker for walker in self._all() if walker.least_runs.size]
        if not walkers:
            return simulate(self.graph, Schedule.store_all(self.graph))
        least = min(walkers, key=lambda walker: walker.least_bytes)
        return simulate(self.graph, Schedule(self.graph.op_names, least.least_runs))


def _none_of(walkers: Sequence[GraphWalker]) -> bool:
    """Whether none of them has found a schedule that fits."""
    return all(walker.best_s == np.inf for walker in walkers)


def _wait_for(thread: threading.Thread) -> None:
    """Wait in slices, so that an interrupt is seen."""
    while thread.is_alive():
        thread.join(0.2)
