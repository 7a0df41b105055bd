"""The recurrence on true bytes: its break points, and the limits at which it gives up."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import pytest
from chains import random_chain, unit_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_plans import schedules
from schedsim.algorithms.chains._recurrence_exact import (
    DONE,
    TOO_MANY_POINTS,
    TOO_MUCH_WORK,
    solve_exact,
)
from schedsim.algorithms.chains.persistent import Problem
from tiers import examples

MANY = 10**6


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 4))
def test_the_break_points_are_all_schedules_that_no_other_beats(seed, num):
    """The whole chain has the same bytes and the same seconds, and no point besides."""
    chain = random_chain(np.random.default_rng(seed), num)
    problem = Problem(chain)
    every = sorted((peak, t) for peak, t, _ in schedules(chain))
    want: list[tuple[int, float]] = []
    for peak, time_s in every:
        if not want or time_s < want[-1][1]:
            want.append((peak - problem.outside_bytes, time_s))
    code, table = solve_exact(problem.line, every[-1][0], MANY, MANY)
    assert code == DONE
    last = table.count.size - 2  # behind it is the row that takes nothing
    begin, end = table.start[last], table.start[last] + table.count[last]
    assert table.memory[begin:end].tolist() == [size for size, _ in want]
    assert table.values[begin:end] == pytest.approx([time_s for _, time_s in want])


def test_points_above_the_cap_are_left_out():
    """And all below are the same."""
    problem = Problem(random_chain(np.random.default_rng(4), 8))
    _, whole = solve_exact(problem.line, 10**6, MANY, MANY)
    row = whole.count.size - 2
    points = whole.memory[whole.start[row] : whole.start[row] + whole.count[row]]
    assert points.size > 3
    cap = int(points[2])
    _, part = solve_exact(problem.line, cap, MANY, MANY)
    found = part.memory[part.start[row] : part.start[row] + part.count[row]]
    assert found.tolist() == points[:3].tolist()
    assert part.memory.max() <= cap
    _, nothing = solve_exact(problem.line, int(points[0]) - 1, MANY, MANY)
    assert nothing.count[row] == 0


def test_limits_are_told_apart():
    """Limits of points and of work: one less than needed is too little, that number is enough."""
    problem = Problem(unit_chain(6))
    code, table = solve_exact(problem.line, 100, MANY, MANY)
    assert code == DONE
    size = table.memory.size - 1  # the row that takes nothing is not counted
    assert solve_exact(problem.line, 100, size, MANY)[0] == DONE
    assert solve_exact(problem.line, 100, size - 1, MANY)[0] == TOO_MANY_POINTS
    enough = bisect_left(range(MANY), True, key=lambda work: _ends(problem, work) == DONE)
    assert {_ends(problem, work) for work in range(enough - 5, enough)} == {TOO_MUCH_WORK}
    assert {_ends(problem, work) for work in range(enough, enough + 5)} == {DONE}


def _ends(problem: Problem, work: int) -> int:
    return solve_exact(problem.line, 100, MANY, work)[0]


def test_room_grows_with_what_is_found():
    """A chain with far more points than there is room for at first: descending, none lost."""
    chain = random_chain(np.random.default_rng(1), 30, integer_times=False)
    problem = Problem(chain)
    code, table = solve_exact(problem.line, 10**6, MANY, 10**7)
    assert code == DONE
    assert table.count.max() > 100
    for start, count in zip(table.start.tolist(), table.count.tolist(), strict=True):
        assert np.all(np.diff(table.memory[start : start + count]) > 0)
        assert np.all(np.diff(table.values[start : start + count]) < 0)
    row = table.count.size - 2
    budgets = table.memory[table.start[row] : table.start[row] + table.count[row] : 40]
    for inside in budgets.tolist():
        budget = inside + problem.outside_bytes
        slots = problem.solve_slots(budget, 1, round_up=True)
        assert problem.time_s(table, budget) == problem.time_s(slots, budget) < math.inf
