"""Annealings in which bytes above the limit have a price at every run, from the first move on."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from schedsim.algorithms.graphs._packed_graph import pack_graph
from schedsim.algorithms.graphs._priced_walker import FITTING, RISING, PriceCourse, PricedWalker
from schedsim.algorithms.graphs._profile_record import LARGEST

from schedsim import Graph, Schedule, simulate
from schedsim.workloads.synthetic_graphs import layered


@cache
def graph() -> Graph:
    return layered(500, 1)


def budget() -> int:
    return int(0.45 * simulate(graph(), Schedule.store_all(graph())).peak_bytes)


def priced(course: PriceCourse) -> PricedWalker:
    walker = PricedWalker.of(
        graph(),
        pack_graph(graph().arrays),
        np.arange(graph().num_ops),
        number=0,
        seed=0,
        rules=(budget(), False),
    )
    walker.go(graph(), course)
    walker.begin(0)
    return walker


def walked(walker: PricedWalker, shares: list[float], work: float) -> list[tuple[float, ...]]:
    """(price in units, temperature in mean op times, peak as a share of the limit) behind each."""
    found = []
    for share in shares:
        walker.anneal(share, work, 2**62)
        peak = walker.profile.tree[1, LARGEST] / walker.rules.limit
        found.append(
            (walker.rules.price[0] / walker.unit_s, walker.heat_s / walker.mean_s, float(peak))
        )
    return found


def replayed_s(walker: PricedWalker) -> float:
    found = simulate(graph(), Schedule(graph().op_names, walker.best_runs))
    assert found.peak_bytes <= budget()
    return found.makespan_s


@pytest.mark.slow
def test_a_rising_price_begins_above_the_limit_and_ends_within():
    walker = priced(RISING)
    way = walked(walker, [k / 60 for k in range(60)], 0.03)
    prices, heats, peaks = zip(*way, strict=True)
    assert prices[0] == pytest.approx(RISING.first)
    assert prices[50] == pytest.approx(RISING.last, rel=0.1)
    assert all(one < other for one, other in pairwise(prices[:51]))
    assert all(one > other for one, other in pairwise(heats))
    assert heats[0] == pytest.approx(RISING.hot)
    assert heats[-1] == pytest.approx(RISING.cold, rel=0.1)
    assert peaks[10] > 1.0
    assert walker.best_s == pytest.approx(replayed_s(walker))


def test_a_fitting_walker_has_all_of_its_heat_once_something_fits():
    """Before, its temperature is one of bytes alone."""
    walker = priced(FITTING)
    way = walked(walker, [k / 60 for k in range(60)], 0.03)
    first = next(k for k in range(60) if way[k][1] > 0)
    assert walker.fits_since == pytest.approx(first / 60)
    assert 0 < first < 50
    assert all(heat == 0 for _, heat, _ in way[:first])
    assert way[first][1] == pytest.approx(FITTING.hot)
    assert way[-1][1] == pytest.approx(FITTING.cold, rel=0.3)
    assert walker.best_s == pytest.approx(replayed_s(walker))


def test_the_price_of_a_fitting_walker_has_an_end():
    """Far beyond it, no move that saves time would be taken for long after something fits."""
    walker = priced(FITTING)
    prices = [price for price, _, _ in walked(walker, [k / 20 for k in range(20)], 0.02)]
    assert max(prices) <= FITTING.last * (1 + 1e-9)
    assert min(prices) < FITTING.last  # it came down once something fitted
