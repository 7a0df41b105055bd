"""The partitions that a pipeline may get, whatever its budget is.

A larger budget is planned on the same partitions as a smaller one, so it cannot miss the partition
that made the smaller one fast.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from schedsim.pipelines import Pipeline

from ._selection import OrderFacts, Selection
from .partition import Partitions, StageCost, neighbours
from .stage_frontier import StageFrontiers

MOST_PARTITIONS = 32
"""All partitions are candidates where there are no more."""

NUM_BUDGETS = 8
"""Otherwise the candidates are those found for so many budgets."""

LONGEST = 1.5
"""No candidate has a stage that, without recomputation, makes the step so many times as long as the
longest stage of the evenest partition does."""

MOST_MOVES = 20
"""Moves of cuts from a partition to a better one, at each budget."""


def candidate_cuts(
    pipeline: Pipeline,
    facts: OrderFacts,
    fronts: StageFrontiers,
    few: StageFrontiers,
    *,
    mix: bool,
) -> list[tuple[int, ...]]:
    """Cuts of stages, the pipeline's own first, among which one is chosen for each budget.

    Where there are few partitions, all are candidates. Otherwise they are the partition that needs
    the least memory, and for each of `NUM_BUDGETS` budgets, from the least to that of keeping all,
    the partition that is best by the dynamic program of `Partitions`, moved to neighbouring
    partitions while the model of step times promises more.

    Parameters
    ----------
    fronts, few
        Fronts for any memory, and perhaps thinner ones for the dynamic program.

    Notes
    -----
    O(stages * layers^2) fronts, of each the costs at all budgets; then for each budget O(stages^2)
    step times a move.
    """
    num_layers, num_stages = pipeline.chain.num_stages, pipeline.num_stages
    own = tuple(pipeline.cuts)
    if math.comb(num_layers - 1, num_stages - 1) <= MOST_PARTITIONS:
        inner = itertools.combinations(range(1, num_layers), num_stages - 1)
        return list(dict.fromkeys([own, *((0, *cuts, num_layers) for cuts in inner)]))
    partitions = Partitions(pipeline, facts.order, few, mix=mix)
    evenest = partitions.least_largest(partitions.plain_cost)
    assert evenest is not None
    most_s = LONGEST * evenest.cost

    def even(cost: StageCost) -> StageCost:
        def found(v: int, lo: int, hi: int) -> float:
            return cost(v, lo, hi) if partitions.plain_cost(v, lo, hi) <= most_s else math.inf

        return found

    smallest = partitions.least_largest(even(partitions.least_bytes))
    if smallest is None:
        return [own]
    lightest = partitions.least_largest(even(partitions.most_bytes))
    assert lightest is not None
    ends = smallest.cost, max(smallest.cost, lightest.cost)
    budgets = [int(budget) for budget in np.geomspace(*ends, NUM_BUDGETS)]
    found = {own: None, smallest.cuts: None}
    known: dict[tuple[int, ...], Selection] = {}

    def step_s(cuts: tuple[int, ...], budget_bytes: int) -> float:
        if cuts not in known:
            known[cuts] = Selection(replace(pipeline, cuts=cuts), facts, fronts, mix=mix)
        return known[cuts].promised_s(budget_bytes)

    for budget, cost in zip(budgets, partitions.costs(budgets), strict=True):
        best = partitions.least_largest(even(cost))
        if best is None:
            continue
        cuts, now = best.cuts, step_s(best.cuts, budget)
        found[cuts] = None
        for _ in range(MOST_MOVES):
            others = neighbours(replace(pipeline, cuts=cuts))
            times = [(step_s(tuple(other.cuts), budget), tuple(other.cuts)) for other in others]
            least, moved = min(times, default=(math.inf, cuts))
            if least >= now * (1 - 1e-12):
                break
            cuts, now = moved, least
        found[cuts] = None
    return list(found)
