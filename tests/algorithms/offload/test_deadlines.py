"""Rows of deadlines: what they forbid, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedsim.algorithms.graphs._milp import Milp
from schedsim.algorithms.offload._deadlines import _MOST_STEPS, add_deadlines

from schedsim.plans.effort import Effort


def most_taken(when, sizes, limits, *, late: float = 0.0, kept: bool = False) -> float:
    """The largest sum of items that keep the deadlines, each a share from 0 to 1, `late` s later.

    With `kept` an item's column says what is not taken, from a constant.
    """
    milp = Milp()
    cost = sizes if kept else -sizes
    columns = milp.variables(sizes.size, cost=cost)
    delay = milp.variables(1, lb=late, ub=late)
    sign = -1.0 if kept else 1.0
    add_deadlines(
        milp,
        when,
        [(columns, sign * sizes)],
        sizes if kept else np.zeros(sizes.size),
        limits,
        [(int(delay[0]), -1.0)],
    )
    answer = milp.solve(Effort(10.0), integral=False)
    return float(sizes.sum()) - answer.bound if kept else -answer.bound


@pytest.mark.parametrize("kept", [False, True])
def test_by_hand(kept):
    """Of 2 s until 1 and 4 s until 3, one second and two can be taken; a delay adds to both."""
    when, sizes = np.array([0, 2]), np.array([2.0, 4.0])
    limits = np.array([1.0, 1.0, 3.0])
    assert most_taken(when, sizes, limits, kept=kept) == pytest.approx(3)
    assert most_taken(when, sizes, limits, late=0.5, kept=kept) == pytest.approx(3.5)
    assert most_taken(when, sizes, np.array([1.0, 1.0, 9.0]), kept=kept) == pytest.approx(5)


@given(seed=st.integers(0, 10**9), num=st.integers(1, 12))
def test_as_much_as_a_link_can_carry(seed, num):
    """Earliest deadline first, item by item, takes as much: no row is missing or too strict."""
    rng = np.random.default_rng(seed)
    limits = np.cumsum(rng.integers(0, 4, 5)).astype(float)
    when = rng.integers(0, limits.size, num)
    sizes = rng.integers(0, 5, num).astype(float)
    taken = 0.0
    for place in sorted(range(num), key=lambda item: when[item]):
        taken += max(0.0, min(sizes[place], limits[when[place]] - taken))
    assert most_taken(when, sizes, limits) == pytest.approx(taken, abs=1e-6)


def test_many_deadlines_become_few_that_are_no_stricter():
    """An item counts from a deadline on that is not before its own."""
    num = 5 * _MOST_STEPS
    when, sizes = np.arange(num), np.full(num, 2.0)
    limits = np.arange(num, dtype=float)
    milp = Milp()
    columns = milp.variables(num)
    none = np.zeros(num)
    add_deadlines(milp, when, [(columns, sizes)], none, limits, [])
    assert milp.num_rows == 2 * _MOST_STEPS
    assert most_taken(when, sizes, limits) == pytest.approx(num - 1)
