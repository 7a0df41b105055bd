"""One annealing of the schedule of a graph, with the best it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedsim.dataflow.graph import Graph, Op

from ._anneal import Found, Rules, anneal
from ._greedy_order import greedy_order
from ._memory_profile import (
    LARGEST,
    NUM_EDITS,
    NUM_SPARE,
    WORK,
    WORK_PER_UNIT,
    PackedGraph,
    Profile,
    load_runs,
    make_profile,
    pack_graph,
    store_runs,
)
from ._moves import repair

# Shares of moves repaired before they count, and temperatures in mean op times at the start of a
# round. Which is better depends on the graph: the walkers take them in turn.
_THOROUGH = (0.3, 0.005)
_HOT = (0.5, 1.0)
_COLD = 0.02  # at the end of a round, of the start
_COOLER = 0.6  # each round begins cooler than the one before

# Evictions of the greedy repair between looks at whether to stop, times the ops of the graph.
_GREEDY_OPS = 100_000


@dataclass
class GraphWalker:
    """A schedule under annealing.

    Attributes
    ----------
    hot_s
        Temperature at the beginning of the next round, in seconds of step time.
    least_runs, least_bytes
        The schedule of the least peak, for as long as none fits.
    """

    packed: PackedGraph
    profile: Profile
    rules: Rules
    found: Found
    hot_s: float
    least_runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    least_bytes: int = 2**62
    heat_s: float = 0.0

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
    ) -> GraphWalker:
        """The walker of that `number` on the schedule `line`; `rules` are (limit, free)."""
        limit, free = rules
        profile = make_profile(packed, line, seed=seed * 1000 + number, free=free)
        unit_s = graph.store_all_s / max(1, int(profile.tree[1, LARGEST]))
        unit_s = unit_s or 1.0
        mean_s = graph.store_all_s / graph.num_ops
        price = np.array([2.0 * unit_s, 0.02 * unit_s, 1000.0 * unit_s])
        walker = cls(
            packed,
            profile,
            Rules(limit, _THOROUGH[number % len(_THOROUGH)], price),
            Found(np.zeros(profile.run.shape[0], np.int64), np.array([np.inf, 0.0])),
            hot_s=_HOT[number // 2 % 2] * mean_s or 1e-12,
        )
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

    def begin(self, number: int) -> None:
        """Begin a round at its temperature; the next one begins cooler."""
        self.heat_s = self.hot_s
        self.hot_s *= _COOLER

    def anneal(self, share: float, work: float, most_moves: int) -> tuple[float, int]:
        counts = self.profile.counts
        before = int(counts[WORK])
        until = before + max(1, int(work * WORK_PER_UNIT))
        heat_s = self.heat_s * _COLD**share
        made = anneal(
            self.packed,
            self.profile,
            self.found,
            self.rules,
            heat_s,
            most_moves,
            until,
        )
        self.note_least()
        return (int(counts[WORK]) - before) / WORK_PER_UNIT, int(made)

    def note_least(self) -> None:
        """Keep the schedule of the least peak, for as long as none fits."""
        peak = int(self.profile.tree[1, LARGEST])
        if not self.found.best[1] and peak < self.least_bytes:
            self.least_bytes = peak
            buffer = np.empty(self.profile.run.shape[0], np.int64)
            self.least_runs = buffer[: store_runs(self.packed, self.profile, buffer)].copy()

    def take(self, runs: NDArray[Any]) -> None:
        """Go on from the schedule `runs`, if there is room for it."""
        if runs.size > self.profile.run.shape[0] // 2:
            return  # no room to search around it
        load_runs(self.packed, self.profile, runs.astype(np.int64))
        self.note_best()

    def note_best(self) -> None:
        """Keep the schedule where it fits and is the fastest so far."""
        total_s, best = self.profile.total_s[0], self.found.best
        if self.profile.tree[1, LARGEST] <= self.rules.limit and total_s < best[0]:
            best[0] = total_s
            best[1] = store_runs(self.packed, self.profile, self.found.runs)

    def greedy(self, most_work: float, is_over: Callable[[], bool]) -> float:
        """Evict at the peak until the schedule fits, as far as that goes; the work done."""
        profile, rules = self.profile, self.rules
        num_ops = profile.ends.shape[0] - 2
        at_once = max(5, min(250, _GREEDY_OPS // num_ops))
        steps_left = 8 * num_ops
        done, idle, begun = False, 0, int(profile.counts[WORK])
        until = begun + most_work * WORK_PER_UNIT
        while steps_left > 0 and not (done or is_over()) and profile.counts[WORK] < until:
            steps = min(at_once, steps_left)
            steps_left -= steps
            before = self._signature()
            done = repair(self.packed, profile, rules.limit, np.inf, steps, 0.3, 200, True)
            # Where no step has an effect it goes no further; many are needed to know.
            if self._signature() == before:
                idle += steps
                if idle >= 250:
                    break
            else:
                idle = 0
        profile.counts[NUM_EDITS] = 0
        self.note_best()
        return (int(profile.counts[WORK]) - begun) / WORK_PER_UNIT

    def _signature(self) -> tuple[int, int, float]:
        """Peak, runs and time: an eviction changes one of them, as many runs may share the peak."""
        profile = self.profile
        peak, spare = int(profile.tree[1, LARGEST]), int(profile.counts[NUM_SPARE])
        return peak, spare, float(profile.total_s[0])


@cache
def load_kernels() -> None:
    """Compile the kernels, or load them, so that this does not count as time to plan in."""
    graph = Graph("two", (Op("a", writes={"x": 1}), Op("b", reads=("x",))))
    packed = pack_graph(graph.arrays)
    greedy_order(packed, 0.0)
    line = np.arange(2, dtype=np.int64)
    walker = GraphWalker.of(graph, packed, line, number=0, seed=0, rules=(0, True))
    walker.take(line)
    walker.greedy(1.0, lambda: False)
    walker.begin(0)
    walker.anneal(0.0, 0.0, 50)
