"""Where to cut the layers of a chain into stages, one a device, under a memory budget.

Stage v, of layers ``lo..hi-1``, takes at least ``trip(lo) + M t_v(lo, hi)``: the trip to it and
back, and M times its time for a micro-batch, recomputation included, which depends on the memory
left for its ``in flight`` micro-batches. A dynamic program over (stage, cut) finds the cuts that
make the largest of these least; with bounds in the place of times, it finds a lower bound over all
partitions.

References
----------
Sun, Cao, Yu et al. 2024, "AdaPipe: optimizing pipeline parallelism with adaptive recomputation and
partitioning", ASPLOS, doi 10.1145/3620666.3651359: recomputation by knapsack within a stage,
partition by dynamic program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedsim.pipelines import Order, Pipeline, most_in_flight

from ._device_choices import HeldStage, least_mean_s
from .pipeline_bounds import forwards_first, held_at_once, holds_neighbours, stage_bound
from .stage_frontier import StageFrontiers

StageCost = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Cuts of a pipeline, and the largest cost of a stage under them."""

    cuts: tuple[int, ...]
    cost: float


def least_largest(
    num_layers: int, num_stages: int, cost: StageCost, *, below: float = math.inf
) -> Cuts | None:
    """The cuts whose most expensive stage is cheapest; ``None`` where all cost `below` or more.

    Parameters
    ----------
    cost
        Cost of (stage, first layer, end); infinite where that stage is impossible.

    Notes
    -----
    O(stages * layers^2) costs. Of equally good cuts, the function takes those with the shorter
    earlier stages.

    Examples
    --------
    >>> least_largest(5, 2, lambda stage, lo, hi: (hi - lo) * (2 - stage)).cuts
    (0, 1, 5)
    """
    best = np.full((num_stages + 1, num_layers + 1), math.inf)
    cut = np.zeros((num_stages + 1, num_layers + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for v in range(num_stages):
        ends = range(v + 1, num_layers - (num_stages - v - 1) + 1)
        for hi in ends if v < num_stages - 1 else [num_layers]:
            for lo in range(v, hi):
                so_far = best[v, lo]
                if so_far >= min(below, best[v + 1, hi]):
                    continue
                now = max(so_far, cost(v, lo, hi))
                if now < min(below, best[v + 1, hi]):
                    best[v + 1, hi], cut[v + 1, hi] = now, lo
    if best[num_stages, num_layers] == math.inf:
        return None
    cuts = [num_layers]
    for v in range(num_stages, 0, -1):
        cuts.append(int(cut[v, cuts[-1]]))
    return Cuts(tuple(reversed(cuts)), float(best[num_stages, num_layers]))


class Partitions:
    """Costs and bounds of all stages that a pipeline's layers may be cut into.

    Parameters
    ----------
    pipeline
        A pipeline with one stage a device; its own cuts play no part.
    fronts
        Of the chain; they may have been cut off at a budget that is looked at, at none below.
    """

    def __init__(
        self, pipeline: Pipeline, order: Order, fronts: StageFrontiers, *, mix: bool
    ) -> None:
        self.pipeline, self.order, self.fronts = pipeline, order, fronts
        self.mix = mix
        self._bounds: dict[tuple[int, int, int, int], float] = {}
        chain = pipeline.chain
        self.sizes = chain.activation_bytes().tolist()
        plain = [layer.forward_s + layer.backward_s for layer in chain.stages]
        self.plain = np.concatenate([[0.0], np.cumsum(plain)])
        trip = [
            layer.forward_s + (0.0 if pipeline.split_backward else layer.backward_s)
            for layer in chain.stages
        ]
        self.trip = np.concatenate([[0.0], np.cumsum(trip)])
        forward = [layer.forward_s for layer in chain.stages]
        self.forward = np.concatenate([[0.0], np.cumsum(forward)])
        static = pipeline.layer_static_bytes or (0,) * chain.num_stages
        self.static = [0]
        for size in static:
            self.static.append(self.static[-1] + size)
        counts = most_in_flight(order)
        num = pipeline.num_stages
        self.in_flight = [max(count.get(v, 0) for count in counts[v]) for v in range(num)]
        self.first = [forwards_first(order, v) for v in range(num)]
        self.held = [held_at_once(order, v) for v in range(num)]
        self.neighbours = all(holds_neighbours(order, v) for v in range(num))

    def plain_cost(self, v: int, lo: int, hi: int) -> float:
        """The `cost` where nothing is recomputed and memory plays no part."""
        work = float(self.plain[hi] - self.plain[lo])
        loss = self.pipeline.chain.loss_s if hi == self.pipeline.chain.num_stages else 0.0
        return float(self.trip[lo]) + self.pipeline.num_micro_batches * (work + loss)

    def costs(self, budgets_bytes: Sequence[int]) -> list[StageCost]:
        """For each budget the cost of a stage: the trip to it and back, and its work.

        The work is M times its fastest time that fits; infinite where none does.
        """
        known: dict[tuple[int, int, int], list[float]] = {}

        def all_costs(v: int, lo: int, hi: int) -> list[float]:
            static = self.static[hi] - self.static[lo]
            stage = HeldStage(self.fronts.front(lo, hi), self.in_flight[v], self.sizes[lo])
            plain = float(self.plain[hi] - self.plain[lo])
            num, least = self.pipeline.num_micro_batches, self.plain_cost(v, lo, hi)
            means = [least_mean_s(stage, size - static, mix=self.mix) for size in budgets_bytes]
            return [least + num * max(mean - plain, 0.0) for mean in means]

        def at(place: int) -> StageCost:
            def cost(v: int, lo: int, hi: int) -> float:
                key = (v, lo, hi)
                if key not in known:
                    known[key] = all_costs(v, lo, hi)
                return known[key][place]

            return cost

        return [at(place) for place in range(len(budgets_bytes))]

    def least_bytes(self, v: int, lo: int, hi: int) -> float:
        """The least bytes that stage v may take, by the model."""
        front = self.fronts.front(lo, hi)
        if not front.num_points:
            return math.inf
        stage = HeldStage(front, self.in_flight[v], self.sizes[lo])
        return float(stage.sizes_bytes.min()) + self.static[hi] - self.static[lo]

    def most_bytes(self, v: int, lo: int, hi: int) -> float:
        """The bytes that stage v takes at most if nothing is recomputed, by the model."""
        saved = sum(layer.saved_bytes for layer in self.pipeline.chain.stages[lo:hi])
        held = self.in_flight[v] * (self.sizes[lo] + saved)
        return float(held + self.static[hi] - self.static[lo])

    def bound(self, v: int, lo: int, hi: int, budget_bytes: int) -> float:
        """A lower bound on the step time of every partition with this stage v."""
        room = budget_bytes - (self.static[hi] - self.static[lo])
        if not self.neighbours:
            return self.plain_cost(v, lo, hi)
        work = stage_bound(self.fronts, self.pipeline, lo, hi, room, self.held[v])
        trip = float(self.trip[lo])
        if self.pipeline.split_backward:
            return trip + work.all_s
        # As `first_turn_s`; messages, which depend on the other cuts, are left out.
        forward_s = float(self.forward[hi] - self.forward[lo])
        way = trip + forward_s + float(self.plain[-1] - self.plain[hi])
        way += self.pipeline.chain.loss_s if hi < self.pipeline.chain.num_stages else 0.0
        return max(trip + work.all_s, way + work.after_first_s - self.first[v] * forward_s)

    def least_largest(self, cost: StageCost, *, below: float = math.inf) -> Cuts | None:
        """The partition with the least largest cost, if that is below `below`."""
        num = self.pipeline.chain.num_stages, self.pipeline.num_stages
        return least_largest(*num, cost, below=below)

    def lower_bound_s(self, budget_bytes: int, most: float) -> float:
        """A lower bound in seconds over all partitions, of which one takes `most`."""
        found = self.least_largest(self.cost_below(budget_bytes, most), below=most)
        return most if found is None else found.cost

    def cost_below(self, budget_bytes: int, most: float) -> StageCost:
        """The `bound` of a stage; infinite where it is `most` even without any recomputation."""

        def cost(v: int, lo: int, hi: int) -> float:
            if self.plain_cost(v, lo, hi) >= most:
                return math.inf
            at = v, lo, hi, budget_bytes
            if at not in self._bounds:
                self._bounds[at] = self.bound(*at)
            return self._bounds[at]

        return cost


def neighbours(pipeline: Pipeline) -> list[Pipeline]:
    """The partitions in which a group of neighbouring cuts lies one layer earlier, or later.

    Moving several cuts together passes a layer from one stage to another further away.
    """
    found = []
    cuts, num = pipeline.cuts, pipeline.num_stages
    for first in range(1, num):
        for last in range(first, num):
            for step in (-1, 1):
                moved = tuple(cut + step for cut in cuts[first : last + 1])
                if cuts[first - 1] < moved[0] and moved[-1] < cuts[last + 1]:
                    new = (*cuts[:first], *moved, *cuts[last + 1 :])
                    found.append(replace(pipeline, cuts=new))
    return found
