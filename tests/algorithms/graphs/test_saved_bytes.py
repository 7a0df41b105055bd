"""Minimum cut and knapsack against enumeration; a bound on saved bytes does not bound the peak."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from chains import INSTANCES, needs_instances
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs._forward_part import forward_part
from schedsim.algorithms.graphs._minimum_cut import cheapest_saved
from schedsim.algorithms.graphs.saved_bytes import (
    Knapsack,
    saved_bytes,
    saved_bytes_curve,
    selections,
)
from tiers import examples
from training_graphs import random_training_graph, unit_training_chain

from schedsim import Graph, Op, load


def test_sizes_beyond_32_bits_are_scaled():
    """Terabytes: the cut through the small tensor is still found, and what it saves suffices."""
    sizes = (3 * 10**12, 10**12, 2 * 10**12)
    ops = [
        Op(f"f{i}", time_s=1, reads=(f"x{i}",) if i else (), writes={f"x{i + 1}": size})
        for i, size in enumerate(sizes)
    ]
    ops.append(Op("b", "backward", reads=("x3",)))
    part = forward_part(Graph("large", tuple(ops)).arrays)
    saved = cheapest_saved(part, np.array([False, True, True]))
    assert np.flatnonzero(saved).tolist() == [1]


@given(seed=st.integers(0, 10**9), num_items=st.integers(0, 8), fraction=st.floats(0.01, 0.99))
@settings(max_examples=examples(200))
def test_knapsack_equals_enumeration(seed, num_items, fraction):
    """Sizes below the number of steps are exact: the best of all sets that fit."""
    rng = np.random.default_rng(seed)
    values, sizes = rng.random(num_items), rng.integers(0, 30, num_items)
    capacity = int(rng.integers(0, 200))
    chosen = Knapsack(values, sizes, capacity).chosen(fraction)
    assert sizes[chosen].sum() <= fraction * capacity
    best = max(
        sum(values[list(some)])
        for count in range(num_items + 1)
        for some in combinations(range(num_items), count)
        if sizes[list(some)].sum() <= int(fraction * capacity)
    )
    assert values[chosen].sum() == pytest.approx(best)


def test_a_large_knapsack_stays_within_its_capacity():
    """Sizes far above the steps are rounded up, so that the true bytes fit."""
    rng = np.random.default_rng(0)
    values, sizes = rng.random(300), rng.integers(10**8, 10**10, 300)
    knapsack = Knapsack(values, sizes, int(sizes.sum()) // 2)
    for fraction in (0.1, 0.5, 0.9):
        taken = sizes[knapsack.chosen(fraction)].sum()
        assert 0.9 * fraction <= taken / (sizes.sum() // 2) <= fraction


@given(seed=st.integers(0, 10**9), num_forward=st.integers(1, 20))
@settings(max_examples=examples(60))
def test_more_of_the_knob_saves_more_and_takes_less_time(seed, num_forward):
    """The ends bound what lies between; at 1 nothing that takes time is recomputed."""
    graph = random_training_graph(np.random.default_rng(seed), num_forward)
    points = saved_bytes_curve(graph, (0, 0.3, 0.6, 1))
    for point in points:
        assert points[0].saved_bytes <= point.saved_bytes <= points[-1].saved_bytes
        assert points[-1].makespan_s <= point.makespan_s
    assert points[-1].makespan_s == graph.store_all_s


def test_the_peak_is_not_monotone_in_the_saved_bytes():
    """A chain whose every third op is slow: at 0 all of it is made again at once.

    With 4 of 13 tensors saved, in a row of pieces of three, at most a piece lives beside them;
    with 1 saved, all 12 others do, as with all saved.
    """
    ops = [
        Op(f"f{i}", time_s=1 + i % 3, reads=(f"x{i}",), writes={f"x{i + 1}": 1}) for i in range(12)
    ]
    ops.append(Op("loss", "loss", reads=("x12",), writes={"d12": 1}))
    for i in range(11, -1, -1):
        reads = (f"x{i}", f"d{i + 1}")
        ops.append(Op(f"b{i}", "backward", 1, reads=reads, writes={f"d{i}": 1}))
    graph = Graph("thirds", tuple(ops), {"x0": 1})
    none, some, every = saved_bytes_curve(graph, (0, 0.3, 1))
    assert none.saved_bytes < some.saved_bytes < every.saved_bytes
    assert some.peak_bytes == 8
    assert none.peak_bytes == every.peak_bytes == 14
    assert none.makespan_s > some.makespan_s > every.makespan_s
    # So a planner that trusted the bound would miss the budget at both ends.
    assert saved_bytes(graph, 8, fraction=0).status == "infeasible"
    assert saved_bytes(graph, 8).feasible


def test_equal_ops_gain_nothing():
    """In a unit chain the knapsack saves one run of ops, and makes the other again at once."""
    points = saved_bytes_curve(unit_training_chain(16), (0.25, 0.5, 0.75, 1))
    assert len({point.peak_bytes for point in points}) == 1
    for less, more in pairwise(points):
        assert less.saved_bytes < more.saved_bytes


@needs_instances
def test_a_lower_bound_can_double_the_peak():
    """DenseNet: a third of the saved bytes, more than twice the peak."""
    graph = load(INSTANCES / "dag" / "ku_densenet_train.json")
    low, high = saved_bytes_curve(graph, (0.05, 0.15))
    assert low.saved_bytes < 0.4 * high.saved_bytes
    assert low.peak_bytes > 2 * high.peak_bytes


def test_one_knapsack_serves_all_settings():
    """Settings asked for together and one by one give the same runs."""
    graph = random_training_graph(np.random.default_rng(11), 20)
    part = forward_part(graph.arrays)
    settings_ = (0.2, 0.4, 0.7)
    together = [runs.tolist() for _, _, runs in selections(part, settings_)]
    alone = [runs.tolist() for one in settings_ for _, _, runs in selections(part, (one,))]
    assert together == alone
