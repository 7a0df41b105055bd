"""A bound over all cuts of a pipeline: the few partitions that single stages allow, one by one.

A partition takes at least the largest bound of its stages, which a dynamic program minimises over
all partitions. Few partitions come close to that minimum. Of these, in the order of their largest
bounds, all actions of the order are looked at in one linear program (``turns_bound.py``). After
each of them, every partition takes at least the least of these programs so far, or the largest
bound of the next one's stages.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ..graphs._milp import MOST_OF_SIMPLEX
from .partition import Partitions, StageCost
from .turns_bound import likely_nonzeros, turns_bound

# Partitions looked at, and their linear programs' non-zeros in all: of ten programs that are as
# large as they may be.
_MOST_PARTITIONS, _MOST_NONZEROS = 64, 10 * MOST_OF_SIMPLEX


def partitions_bound(partitions: Partitions, budget_bytes: int, most: float) -> float:
    """A lower bound in seconds over all partitions, of which one takes `most`.

    O(stages * layers^2) bounds of stages, then at most `_MOST_PARTITIONS` linear programs.

    Examples
    --------
    >>> from schedsim.pipelines import make_order, make_pipeline
    >>> from schedsim.algorithms.pipelines.stage_frontier import StageFrontiers
    >>> from schedsim.workloads.synthetic import uniform
    >>> pipeline, order = make_pipeline(uniform(8), 4, 8), make_order("1f1b", 4, 8)
    >>> fronts = StageFrontiers(pipeline.chain, 40_000_000)
    >>> partitions = Partitions(pipeline, order, fronts, mix=True)
    >>> round(partitions_bound(partitions, 40_000_000, 0.08), 5)  # 0.066 by single stages
    0.06775
    """
    single_s = partitions.lower_bound_s(budget_bytes, most)
    if single_s >= most:
        return most
    count = min(_MOST_PARTITIONS, _MOST_NONZEROS // max(1, likely_nonzeros(partitions.order)))
    cost = partitions.cost_below(budget_bytes, most)
    cheapest, others_s = _cheapest(partitions, cost, most, count)
    least_s = math.inf
    for size_s, cuts in cheapest:
        if size_s >= least_s:
            break
        pipeline = replace(partitions.pipeline, cuts=cuts)
        turns_s = turns_bound(partitions.fronts, pipeline, partitions.order, budget_bytes)
        least_s = min(least_s, max(size_s, turns_s))
    return max(single_s, min(most, others_s, least_s))


def _cheapest(
    partitions: Partitions, cost: StageCost, most: float, count: int
) -> tuple[list[tuple[float, tuple[int, ...]]], float]:
    """At most `count` partitions with their largest costs, ascending, and the least of the others.

    The second is `most` where no other partition costs less.
    """
    ways = _ways(partitions, cost, most)
    costs = sorted({cost(v, lo, hi) for v, some in enumerate(ways) for lo, hi in some})
    low, high = 0, len(costs)  # partitions all below costs[low - 1] are few enough
    while low < high:
        middle = (low + high + 1) // 2
        below = costs[middle] if middle < len(costs) else most
        if _number(_ways(partitions, cost, below)) <= count:
            low = middle
        else:
            high = middle - 1
    below = costs[low] if low < len(costs) else most
    found = [
        (max(cost(v, lo, hi) for v, (lo, hi) in enumerate(itertools.pairwise(cuts))), cuts)
        for cuts in _all_cuts(_ways(partitions, cost, below), (0,))
    ]
    return sorted(found), below


_Ways = list[list[tuple[int, int]]]


def _ways(partitions: Partitions, cost: StageCost, below: float) -> _Ways:
    """For each stage the runs of layers of all partitions whose stages cost less than `below`."""
    num_layers, num_stages = partitions.pipeline.chain.num_stages, partitions.pipeline.num_stages
    found: _Ways = []
    starts = {0}
    for v in range(num_stages):
        last = v == num_stages - 1
        ends = [num_layers] if last else range(v + 1, num_layers - (num_stages - v - 1) + 1)
        found.append(
            [
                (lo, hi)
                for lo in sorted(starts)
                for hi in ends
                if lo < hi and cost(v, lo, hi) < below
            ]
        )
        starts = {hi for _, hi in found[v]}
    for v in range(num_stages - 1, 0, -1):  # those from which the end is reached
        goes_on = {lo for lo, _ in found[v]}
        found[v - 1] = [(lo, hi) for lo, hi in found[v - 1] if hi in goes_on]
    return found


def _number(ways: _Ways) -> int:
    """How many partitions there are."""
    numbers = {0: 1}
    for some in ways:
        following: dict[int, int] = {}
        for lo, hi in some:
            following[hi] = following.get(hi, 0) + numbers.get(lo, 0)
        numbers = following
    return sum(numbers.values())


def _all_cuts(ways: _Ways, cuts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The cuts of every partition that begins with `cuts`."""
    if len(cuts) > len(ways):
        yield cuts
        return
    for lo, hi in ways[len(cuts) - 1]:
        if lo == cuts[-1]:
            yield from _all_cuts(ways, (*cuts, hi))
