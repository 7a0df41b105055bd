"""Rounds of walkers: after each the worse half drops out, and on the way they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from schedsim.simulation.simulator import simulate

from .._pool import Pool, RoundPart
from ._merge_search import MergeSearch
from ._population import Population
from ._priced_rounds import PricedRounds
from ._replan_search import ReplanSearch
from ._walker import NUM_KINDS, SMALL_OPS, GraphWalker, none_of

if TYPE_CHECKING:
    from ._graph_search import GraphSearch

FIRST_MEETING = 0.1
"""The share of the first round after which the walkers meet for the first time."""

# From so many ops on, where no walker fits at first, bytes above the limit are summed over all runs
# from the beginning, and half of the walkers go on where none fits when they meet; on fewer ops,
# only from the second meeting on. Where plans are found without the sum, it makes them no better.
_SUMMED_FROM = 500

# A schedule that the bound suggests is worth a repair up to so many times the budget.
_CLOSE = 1.1

# Where nothing fits yet when the bound is there, on fewer than so many ops, walkers start from so
# many of its schedules, however far these are: from those that take about as long as the bound. For
# its greedy repair each may take that share of the work left.
_REPAIRED_OPS, _FROM_BOUND, _REPAIRED = 300, 2, 0.05

# On graphs of the first numbers of ops a population comes before the other walkers; on those of the
# second where none of these fits when they meet again. Some larger graphs need long annealings.
_POPULATED_OPS, _POPULATED_IN_NEED = range(60, SMALL_OPS), range(SMALL_OPS, 500)

# Where first runs have a fixed order, on graphs of these numbers of ops, integer programs have that
# share of the walkers' work in the end: they merge the fastest schedules, at most so many, for as
# long as that changes anything, and then plan ops of the best anew, in so many searches beside each
# other, which meet so many times.
_MERGED_OPS, _PROGRAMS, _MERGED_LINES = range(60, 500), 0.2, 4
_REPLANS, _MEETINGS = 2, 4


class WalkerRounds:
    """The rounds of one search; `lines` are legal orders, the graph's own first."""

    def __init__(
        self, search: GraphSearch, pool: Pool[GraphWalker], lines: Sequence[NDArray[Any]]
    ) -> None:
        self.search, self.pool, self.lines = search, pool, lines
        # After this meeting without a plan, bytes above the limit are summed.
        self._met_in_vain = 0 if search.graph.num_ops >= _SUMMED_FROM else 1

    def run(self) -> None:
        """Search with all walkers, after a population on small graphs."""
        active = list(self.search.walkers)
        self._populate(_POPULATED_OPS)
        if self.pool.winner is None and not self.search.is_done(self.pool):
            self._rounds(active)

    def _rounds(self, active: list[GraphWalker]) -> None:
        """The rounds; a walker on the lean schedule of the lines joins where none fits at first."""
        search, pool = self.search, self.pool
        if self._met_in_vain == 0 and search.none_fits():
            for walker in active:
                walker.sum_excess()
        num_rounds = max(1, int(np.ceil(np.log2(max(2, len(active))))))
        # In the first round the walkers meet on the way, to take in the bound and to learn what
        # fits.
        segments = [RoundPart(0, 0.0, FIRST_MEETING), RoundPart(0, FIRST_MEETING, 0.4)]
        segments += [RoundPart(0, 0.4, 1.0)]
        segments += [RoundPart(number) for number in range(1, num_rounds)]
        left = sum(segment.high - segment.low for segment in segments)
        kept = left * _PROGRAMS / (1.0 - _PROGRAMS) if self._has_programs() else 0.0
        for at, segment in enumerate(segments):
            if segment.number and segment.low == 0.0:
                active = self._next_round(active)
            if at == 2 and (found := self._from_bound()):
                active += found
            elif at > 1:
                worst = max(active, key=lambda walker: walker.rank)
                self._take_up_bound(worst, spare=len(active) > 1)
            if at == 1 and self._is_hard():
                search.lean.take(pool)
                PricedRounds(search, pool, self.lines).come_down()
                return
            width = segment.high - segment.low
            if at + 1 == len(segments) and search.none_fits():
                kept = 0.0
            pool.walk(active, segment, width / (left + kept))
            left -= width
            search.bound.begin(pool)
            active = self._meet(at, active)
            if self._is_over(at):
                search.lean.end(pool)
                return
        if kept and not search.none_fits():
            if len(lines := self._to_merge()) > 1:
                self._merge(lines)
            self._replan()

    def _next_round(self, active: list[GraphWalker]) -> list[GraphWalker]:
        """The walkers of a round after the first."""
        search = self.search
        active = active + search.begin_leanest(self.pool, self.lines)
        few = 2 if search.effort.counted else min(search.num_threads, 2)
        active = _fewer(active, 1 if none_of(active) else few)
        alone = search.one_alone and search.graph.num_ops >= _SUMMED_FROM
        return active[:1] if alone and not search.none_fits() else active

    def _meet(self, at: int, active: list[GraphWalker]) -> list[GraphWalker]:
        """The walkers that go on after the meeting number `at`."""
        search, pool = self.search, self.pool
        if (lean := search.lean.take(pool)) is not None and search.none_fits():
            active = [*active, search.go_on_from(lean.schedule.bind(search.graph))]
        if at == 1 and search.none_fits():
            active = active + self._populate(_POPULATED_IN_NEED)
        if at == self._met_in_vain and none_of(active):
            # What is hard to fit takes long annealings, warm ones and cool ones.
            active = [*_fewer(active[::2], 1), *_fewer(active[1::2], 1)]
            for walker in active:
                walker.sum_excess()
        if at == 0 and 2 * sum(walker.best_s < np.inf for walker in active) > len(active):
            for walker in active:
                walker.move_as_usual()
        if at == 0 and search.none_fits():
            search.lean.begin(pool, self.lines)
        return active

    def _is_over(self, at: int) -> bool:
        """Whether the search ends after the meeting number `at`, with what the bound has proven."""
        search, pool = self.search, self.pool
        if at and search.effort.counted:
            search.bound.join(pool)
        if at or not search.effort.counted:
            search.bound.learn(pool)
            return pool.winner is not None or search.is_done(pool)
        # How far the bound has come by now is chance.
        best_s = min(walker.best_s for walker in search.all_walkers())
        return pool.winner is not None or search.effort.is_over(best_s)

    def _populate(self, sizes: range) -> list[GraphWalker]:
        """The best walker of a population, on graphs of these numbers of ops."""
        search = self.search
        if search.graph.num_ops not in sizes or search.effort.moves is not None:
            return []
        found = Population(search, self.pool).run(self.lines)
        search.walkers += found
        return found

    def _has_programs(self) -> bool:
        """Whether integer programs come in the end: first runs have one order, and are not many."""
        search = self.search
        by_moves = search.effort.moves is not None
        return not (search.free or by_moves) and search.graph.num_ops in _MERGED_OPS

    def _to_merge(self) -> list[NDArray[np.int64]]:
        """The fastest schedules of different walkers that fit, the fastest first."""
        found = [walker for walker in self.search.all_walkers() if walker.best_s < np.inf]
        lines = [walker.best_runs for walker in sorted(found, key=lambda walker: walker.rank)]
        return lines[:_MERGED_LINES]

    @property
    def _ends(self) -> tuple[float, Callable[[float], object], Callable[[], bool]]:
        """The time at which programs stop, to whom they report, and whether all has halted."""
        pool = self.pool
        return pool.enough_s, pool.progress.report, pool.halted.is_set

    def _merge(self, lines: list[NDArray[np.int64]]) -> None:
        """Look for better mixtures of what the walkers came to."""
        search, pool, seed = self.search, self.pool, self.search.seed
        merger = MergeSearch(search.graph, search.budget_bytes, lines, seed=seed)
        search.programs.append(merger)
        pool.wait(pool.submit(partial(merger.run, search.effort, *self._ends)))

    def _replan(self) -> None:
        """Plan ops of the best schedule anew; when the searches meet, all go on from the best."""
        search, pool = self.search, self.pool
        best = search.best()
        assert best is not None
        line = best.bind(search.graph).astype(np.int64)
        replans = [
            ReplanSearch(search.graph, search.budget_bytes, line, seed=search.seed + k)
            for k in range(_REPLANS)
        ]
        search.programs += replans

        def run(one: ReplanSearch, amount: float) -> float:
            part = search.effort.take(amount)
            one.run(part, *self._ends)
            return part.spent

        for meeting in range(_MEETINGS):
            if pool.halted.is_set() or search.is_done(pool) or all(one.is_done for one in replans):
                return
            amount = pool.per_job(search.effort.left / (_MEETINGS - meeting), _REPLANS)
            for spent in pool.all_of([partial(run, one, amount) for one in replans]):
                search.effort.spend(spent)
            first = min(replans, key=lambda one: one.rank)
            for one in replans:
                one.go_on_from(first)

    def _take_up_bound(self, walker: GraphWalker, spare: bool) -> None:
        """Make `walker` go on from the bound's schedule, if that is better than the walker's own.

        A walker that can be spared goes on from the bound's last schedule over budget instead: such
        schedules are close to the bound, and often need little repair.
        """
        graph, cuts = self.search.graph, self.search.bound.cuts
        if cuts is None:
            return
        if cuts.best is not None and cuts.best_s < walker.best_s:
            walker.take(cuts.best.bind(graph))
        elif spare and cuts.suggested:
            close = simulate(graph, cuts.suggested.pop())
            if close.peak_bytes <= _CLOSE * self.search.budget_bytes:
                walker.take(close.schedule.bind(graph), greedy=True)

    def _is_hard(self) -> bool:
        """Whether none of many walkers has come within the limit by their first meeting."""
        effort = self.search.effort
        if not effort.counted or effort.moves is not None:
            return False
        return self._met_in_vain == 0 and self.search.none_fits()

    def _from_bound(self) -> list[GraphWalker]:
        """Where nothing fits: walkers on schedules of the bound, after a greedy repair of each.

        Such schedules keep and repeat about the right tensors, and are over budget where repeated
        runs need memory.
        """
        search, pool = self.search, self.pool
        if search.graph.num_ops >= _REPAIRED_OPS or not search.none_fits():
            return []
        lines = search.bound.near()[:_FROM_BOUND]
        found = pool.all_of(
            [
                partial(search.make, k * NUM_KINDS, line, greedy=True)  # thorough ones
                for k, line in enumerate(lines)
            ]
        )
        most = pool.per_job(_REPAIRED * len(found) * search.effort.left, max(1, len(found)))
        for work in pool.all_of([partial(walker.greedy, most) for walker in found]):
            search.effort.spend(work)
        for walker in found:
            walker.begin(0)  # in the middle of a round
        search.walkers += found
        return found


def _fewer(active: list[GraphWalker], few: int) -> list[GraphWalker]:
    """The better half, and at least `few`."""
    return sorted(active, key=lambda walker: walker.rank)[: max(few, len(active) // 2)]
