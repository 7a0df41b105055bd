"""One annealing of the schedule of a graph, with the best it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph

from ._anneal import Found, Rules, walk
from ._memory_profile import load_runs, make_profile, store_runs
from ._packed_graph import PackedGraph
from ._profile_record import LARGEST, NUM_EDITS, NUM_SLOTS, NUM_SPARE, WORK, Profile, work_per_unit


@dataclass(frozen=True, slots=True)
class Kind:
    """How a walker goes about it.

    Attributes
    ----------
    thorough
        Share of moves repaired before they count.
    hot
        Temperature at the start of its first round, in mean op times.
    greedy
        Whether it begins with the greedy repair.
    steps_down
        Whether it comes down to the limit step by step.
    warm
        While nothing fits, it may raise what is above the limit by about so many tensors of mean
        size, where that is summed.
    """

    thorough: float
    hot: float
    greedy: bool = False
    steps_down: bool = False
    warm: float = 0.5


# Which is better depends on the graph: the walkers take them in turn. On large graphs a greedy
# eviction costs as much as hundreds of small moves, which bring a schedule within the limit sooner.
# While nothing fits, a fifth of the warmth is too cold on graphs in which one op needs most of the
# budget, twice of it too hot on others; some tight limits are met by much warmer walkers alone.
_SMALL = (
    Kind(0.3, 0.5, greedy=True),
    Kind(0.005, 0.5, steps_down=True),
    Kind(0.3, 1.0),
    Kind(0.005, 1.0, greedy=True),
)
_LARGE = (
    Kind(0.005, 1.0),
    Kind(0.005, 0.5, steps_down=True, warm=4.0),
    Kind(0.02, 1.0, greedy=True),
    Kind(0.005, 2.0, steps_down=True, warm=4.0),
)

SMALL_OPS = 300
"""Graphs of fewer ops are small: more walkers are worth their work."""

# On fewer than so many ops that share of the moves are exchanges. On more, most of these fail, and
# the work is better spent on others.
_EXCHANGED_OPS, _EXCHANGES = 500, 0.15

# From so many ops on, where bytes above the limit are summed, they are so to the end, no limit is
# stepped down to, no move is repaired, and that share of the moves are exchanges. A move that is
# repaired takes hundreds of times as long as another: 0.5 % of them took nine tenths of the work.
# Where most walkers fit soon, repairs are worth that.
_PLAIN_OPS, _PLAIN_EXCHANGES = 500, 0.1

ALONE = Kind(0.005, 1.0)
"""Of a walker that has all of the work."""

SMALL_MOVES = Kind(0.0, 0.5)
"""Small moves alone, from the temperatures that most begin at."""

NUM_KINDS = len(_SMALL)
"""So far apart are the numbers of two walkers of the same kind, of which the first is thorough."""

# Up to so many ops, bytes above the limit can count at every run.
_SUMMED_OPS = 2500

_COLD = 0.02  # at the end of a round, of the start
# The warmth of all walkers where the peak alone counts.
_WARM = 0.5
# While nothing fits, walkers that step down aim at a limit so much below the peak that they have
# come to. Far above the limit, a move would find no room for anything that it keeps.
_STEP_DOWN = 0.03
_COOLER = 0.6  # each round begins cooler than the one before

# The greedy repair goes no further after so many evictions without effect, and in all after so
# many times the ops of the graph; it ends after that share of the walker's first round.
_MOST_IDLE, _EVICTIONS_PER_OP, _GREEDY_SHARE = 250, 8, 0.3


def num_walkers(num_ops: int, few: int) -> int:
    """How many walkers are worth their work on so many ops; at least `few`."""
    return max(few, 8 if num_ops < SMALL_OPS else 4 if num_ops < 3000 else few)


@dataclass
class GraphWalker:
    """A schedule under annealing.

    Attributes
    ----------
    hot_s
        Temperature at the beginning of the next round, in seconds of step time.
    warm_bytes
        Temperature of the peak at the beginning of every round, for as long as nothing fits.
    least_runs, least_bytes
        The schedule of the least peak, for as long as none fits.
    warmer
        So many times that, where what is above the limit is summed.
    usual
        Its rules, and whether it steps down, as they were before what is above the limit was summed
        to the end.
    greedy_until
        The share of the round at which the greedy repair ends; ``None`` before it has begun.
    steps_down, aim_bytes
        Whether the walker comes down to the limit step by step, and the step that it is at.
    on_the_way
        The fastest schedule of that step; its runs are overwritten once something fits.
    """

    packed: PackedGraph
    profile: Profile
    rules: Rules
    found: Found
    on_the_way: Found
    hot_s: float
    warm_bytes: float
    least_runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    least_bytes: int = 2**62
    heat_s: float = 0.0
    evictions_left: int = 0
    idle: int = 0
    greedy_until: float | None = None
    steps_down: bool = False
    aim_bytes: int = 2**62
    warmer: float = 1.0
    first_hot_s: float = 0.0
    usual: tuple[Rules, bool] | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        packed: PackedGraph,
        line: NDArray[Any],
        *,
        number: int,
        seed: int,
        rules: Any,
        kind: Kind | None = None,
        step_s: float | None = None,
    ) -> Self:
        """The walker of that `number` on the schedule `line`; `rules` are (limit, free).

        Without a `kind` it has that of its number. `step_s` is the time of the store-all step,
        where the times in `packed` are not the graph's.
        """
        limit, free = rules
        kinds = _SMALL if graph.num_ops < SMALL_OPS else _LARGE
        kind = kind or kinds[number % len(kinds)]
        profile = make_profile(packed, line, seed=seed * 1000 + number, free=free)
        step_s = graph.store_all_s if step_s is None else step_s
        unit_s = step_s / max(1, int(profile.tree[1, LARGEST]))
        unit_s = unit_s or 1.0
        mean_s = step_s / graph.num_ops
        price = np.array([2.0 * unit_s, 0.02 * unit_s, 1000.0 * unit_s, 0.0])
        sizes = graph.arrays.tensor_bytes
        best_runs = np.zeros(profile.run.shape[0], np.int64)
        exchanges = _EXCHANGES if graph.num_ops < _EXCHANGED_OPS else 0.0
        walker = cls(
            packed,
            profile,
            Rules(limit, kind.thorough, price, exchanges=exchanges),
            Found(best_runs, np.array([np.inf, 0.0])),
            Found(best_runs, np.array([np.inf, 0.0])),
            hot_s=kind.hot * mean_s or 1e-12,
            warm_bytes=_WARM * float(sizes.sum()) / max(1, sizes.size),
            warmer=kind.warm / _WARM,
            evictions_left=_EVICTIONS_PER_OP * graph.num_ops if kind.greedy else 0,
            steps_down=kind.steps_down,
        )
        walker.first_hot_s = walker.hot_s
        walker.note_best()
        return walker

    @property
    def best_s(self) -> float:
        return float(self.found.best[0])

    @property
    def best_runs(self) -> NDArray[np.int64]:
        """The fastest schedule that fits; empty where there is none."""
        return self.found.runs[: int(self.found.best[1])]

    @property
    def rank(self) -> tuple[int, float]:
        return (0, self.best_s) if self.found.best[1] else (1, float(self.least_bytes))

    def sum_excess(self) -> None:
        """From now on, and while nothing fits, bytes above the limit count at every run.

        On hundreds of ops and more they do so to the end.

        The largest graphs are left to the peak, because the sum goes over all slots of a range.
        """
        num_ops = self.profile.ends.shape[0]
        if num_ops > _SUMMED_OPS or self.rules.summed:
            return
        self.rules = replace(self.rules, summed=True)
        self.usual = self.rules, self.steps_down
        if num_ops >= _PLAIN_OPS:
            self.rules = replace(self.rules, thorough=0.0, exchanges=_PLAIN_EXCHANGES, lasting=True)
            self.steps_down = False
        self.warm_bytes *= self.warmer

    def move_as_usual(self) -> None:
        """From now on bytes count at every run until something fits, and moves are as usual."""
        if self.usual is not None:
            self.rules, self.steps_down = self.usual

    def begin(self, number: int) -> None:
        """Begin a round at its temperature; the next one begins cooler."""
        self.heat_s = self.hot_s
        self.hot_s *= _COOLER

    def anneal(self, share: float, work: float, most_moves: int) -> tuple[float, int]:
        if self.evictions_left > 0:
            if self.greedy_until is None:
                self.greedy_until = share + _GREEDY_SHARE * (1.0 - share)
            if share < self.greedy_until:
                return self.greedy(work), 0
            self.end_greedy()
        self.rules.price[3] = self.warm_bytes * _COLD**share
        return self.move(self.heat_s * _COLD**share, work, most_moves)

    def move(self, heat_s: float, work: float, most_moves: int) -> tuple[float, int]:
        """Anneal at one temperature; the work done, and the number of moves."""
        counts = self.profile.counts
        before = int(counts[WORK])
        until = before + max(1, int(work * self.work_per_unit))
        rules, found = self._aimed()
        made = walk(
            self.packed,
            self.profile,
            found,
            rules,
            heat_s,
            most_moves,
            until,
            False,
        )
        self.note_least()
        return (int(counts[WORK]) - before) / self.work_per_unit, int(made)

    def _aimed(self) -> tuple[Rules, Found]:
        """The rules of the next moves, and where the best of them is kept."""
        if not self.steps_down or self.found.best[1]:
            return self.rules, self.found
        peak = int(self.profile.tree[1, LARGEST])
        if peak <= self.aim_bytes:
            self.aim_bytes = max(self.rules.limit, int(peak * (1 - _STEP_DOWN)))
            self.on_the_way = replace(self.on_the_way, best=np.array([np.inf, 0.0]))
        if self.aim_bytes == self.rules.limit:
            self.note_best()
            return self.rules, self.found
        return replace(self.rules, limit=self.aim_bytes), self.on_the_way

    @property
    def work_per_unit(self) -> float:
        """Steps that a core takes in about a second: long trees lie in slower memory."""
        return work_per_unit(int(self.profile.counts[NUM_SLOTS]))

    def note_least(self) -> None:
        """Keep the schedule of the least peak, for as long as none fits."""
        peak = int(self.profile.tree[1, LARGEST])
        if not self.found.best[1] and peak < self.least_bytes:
            self.least_bytes = peak
            self.least_runs = self.runs()

    def runs(self) -> NDArray[np.int64]:
        """The runs of the schedule as it is now."""
        buffer = np.empty(self.profile.run.shape[0], np.int64)
        return buffer[: store_runs(self.packed, self.profile, buffer)].copy()

    def cost_s(self, price_s: float) -> float:
        """The time of the schedule as it is now, with `price_s` for each byte above the limit."""
        above = max(0, int(self.profile.tree[1, LARGEST]) - self.rules.limit)
        return float(self.profile.total_s[0]) + price_s * above

    def take(self, runs: NDArray[Any], greedy: bool = False) -> None:
        """Go on from the schedule `runs`, if there is room for it; with its greedy repair first."""
        if runs.size > self.profile.run.shape[0] // 2:
            return  # no room to search around it
        load_runs(self.packed, self.profile, runs.astype(np.int64))
        self.aim_bytes = 2**62
        if greedy and self.profile.ends.shape[0] < SMALL_OPS:
            self.evictions_left, self.idle = self.profile.ends.shape[0], 0
            self.greedy_until = None
        self.note_best()

    def note_best(self) -> None:
        """Keep the schedule where it fits and is the fastest so far."""
        total_s, best = self.profile.total_s[0], self.found.best
        if self.profile.tree[1, LARGEST] <= self.rules.limit and total_s < best[0]:
            best[0] = total_s
            best[1] = store_runs(self.packed, self.profile, self.found.runs)

    def greedy(self, most_work: float = np.inf) -> float:
        """Evict at the peak until the schedule fits, as far as that goes; the work done.

        Called again it goes on, until `evictions_left` is 0.
        """
        profile, rules = self.profile, self.rules
        begun = int(profile.counts[WORK])
        until = begun + most_work * self.work_per_unit
        at_once = 5
        while self.evictions_left > 0:
            steps = min(at_once, self.evictions_left)
            self.evictions_left -= steps
            before = self._signature()
            if walk(self.packed, profile, self.found, rules, 0.0, steps, 0, True):
                self.evictions_left = 0
            # A repair whose steps have no effect is given up, but only after many such steps.
            self.idle = self.idle + steps if self._signature() == before else 0
            if self.idle >= _MOST_IDLE:
                self.evictions_left = 0
            if profile.counts[WORK] >= until:
                break
        if self.evictions_left == 0:
            self.end_greedy()
        return (int(profile.counts[WORK]) - begun) / self.work_per_unit

    def end_greedy(self) -> None:
        """Take what the evictions came to as it is."""
        self.evictions_left = 0
        self.profile.counts[NUM_EDITS] = 0
        self.note_best()
        self.note_least()

    def _signature(self) -> tuple[int, int, float]:
        """Peak, runs and time: an eviction changes one of them, as many runs may share the peak."""
        profile = self.profile
        peak, spare = int(profile.tree[1, LARGEST]), int(profile.counts[NUM_SPARE])
        return peak, spare, float(profile.total_s[0])


def none_of(walkers: Sequence[GraphWalker]) -> bool:
    """Whether none of them has found a schedule that fits."""
    return all(walker.best_s == np.inf for walker in walkers)
