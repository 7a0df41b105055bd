"""Numbers for solvers, and bounds that their tolerances cannot make wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedsim.algorithms.graphs._scaling import byte_divisor, solver_times, whole_costs

TIMES = st.lists(
    st.one_of(st.integers(0, 1000).map(float), st.floats(0, 1e6)), min_size=1, max_size=8
)


@given(times=TIMES, chosen=st.integers(0, 255))
def test_a_bound_on_any_sum_stays_a_bound(times, chosen):
    """What a solver says of costs, in seconds: never above the sum itself, and hardly below."""
    times_s = np.array(times)
    own = np.array([chosen >> i & 1 for i in range(times_s.size)], bool)
    scaled = solver_times(times_s)
    bound_s = scaled.bound_s(float(scaled.costs[own].sum()))
    true_s, total_s = float(times_s[own].sum()), float(times_s.sum())
    assert true_s - 1e-10 * total_s - 1e-280 <= bound_s + 2e-11 * total_s
    assert bound_s <= true_s * (1 + 1e-12) + 1e-300


def test_no_bound_is_zero():
    """A solver that found none, or says nonsense."""
    scaled = solver_times(np.array([1.0, 2.5]))
    assert [scaled.bound_s(value) for value in (None, float("nan"), -3.0, 0.0)] == [0.0] * 4


def test_whole_times_stay_whole():
    """In their greatest common unit, so that bounds are rounded up to the next sum."""
    scaled = solver_times(np.array([6.0, 9.0, 0.0]))
    assert (scaled.costs.tolist(), scaled.unit_s, scaled.whole) == ([2.0, 3.0, 0.0], 3.0, True)
    assert scaled.bound_s(3.2) == 12.0  # no sum of 2 and 3 lies between 3 and 4


@given(times=TIMES)
def test_whole_costs_are_rounded_down(times):
    """A bound on their sum is a bound in seconds."""
    costs, unit_s = whole_costs(np.array(times))
    for cost, time_s in zip(costs, times, strict=True):
        assert isinstance(cost, int)
        assert cost * unit_s <= time_s * (1 + 1e-15)
    assert sum(times) - sum(costs) * unit_s <= 1e-14 * sum(times) + 1e-280


def test_sizes_share_their_divisor():
    """Dividing sizes and budget by it changes nothing."""
    assert byte_divisor([12, 18, 0]) == 6
    assert byte_divisor([0, 0]) == 1
