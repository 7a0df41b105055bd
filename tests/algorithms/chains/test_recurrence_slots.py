"""The recurrence over memory slots, against all persistent schedules one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import random_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_plans import schedules
from schedsim.algorithms.chains._recurrence_slots import _improve_dense
from schedsim.algorithms.chains.persistent import Problem
from tiers import examples

from schedsim.kernels.compiled import in_python

ROW = st.lists(st.integers(0, 20), min_size=1, max_size=8).map(
    lambda values: np.array(sorted(values, reverse=True), dtype=np.float64)
)


@given(best=ROW, one=ROW, other=ROW, at=st.integers(0, 7), base=st.integers(0, 5))
def test_a_row_is_improved_by_a_sum_of_two(best, one, other, at, base):
    """Entry by entry; rows that are shorter stay at their last value."""
    at = min(at, best.size)
    want = best.copy()
    for q in range(best.size - at):
        sum_s = base + one[min(q, one.size - 1)] + other[min(q, other.size - 1)]
        want[at + q] = min(want[at + q], sum_s)
    in_python(_improve_dense)(best, at, float(base), one, other)
    assert best.tolist() == want.tolist()


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 4), unit=st.sampled_from([1, 2, 5]))
def test_times_are_those_of_the_best_schedule(seed, num, unit):
    """A slot a byte: at every budget. Coarser: rounded up never faster, rounded down never slower.

    And rounded up, the time is that of a schedule that fits.
    """
    chain = random_chain(np.random.default_rng(seed), num)
    problem = Problem(chain)
    every = schedules(chain)
    budgets = {peak + more for peak, _, _ in every for more in (-1, 0)}
    for budget in sorted(budgets)[:: max(1, len(budgets) // 6)]:
        best = min((t for peak, t, _ in every if peak <= budget), default=math.inf)
        up = problem.time_s(problem.solve_slots(budget, unit, round_up=True), budget)
        down = problem.time_s(problem.solve_slots(budget, unit, round_up=False), budget)
        assert down <= best * (1 + 1e-12)
        assert up >= best * (1 - 1e-12)
        if unit == 1:
            assert up == down == pytest.approx(best)
        elif up < math.inf:
            assert any(t == pytest.approx(up) and peak <= budget for peak, t, _ in every)
