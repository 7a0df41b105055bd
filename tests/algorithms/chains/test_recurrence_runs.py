"""From solved rows to runs: they take the time that the rows say, within the memory they say."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_chain, unit_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from listed_plans import replays
from schedsim.algorithms.chains._recurrence_runs import list_runs
from schedsim.algorithms.chains.persistent import Problem
from tiers import examples

from schedsim import Chain, Schedule, simulate


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 9), dense=st.booleans())
def test_runs_keep_to_the_time_and_the_memory_of_their_row(seed, num, dense):
    """At budgets all along the curve, for rows of slots and rows of break points."""
    chain = random_chain(np.random.default_rng(seed), num)
    problem = Problem(chain)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    exact = problem.solve_exact(peak, max_points=10**6, max_work=10**7)
    for budget in np.linspace(problem.min_feasible_bytes, peak, 5).astype(int).tolist():
        table = problem.solve_slots(budget, 1, round_up=True) if dense else exact
        inside = budget - problem.outside_bytes
        runs, _ = list_runs(problem.line, table, inside, 0, num)
        found = simulate(chain, Schedule(chain.op_names, runs))
        assert found.peak_bytes <= budget
        assert found.makespan_s == pytest.approx(problem.time_s(table, budget))


def test_a_part_of_a_chain_is_run_by_itself():
    """Stages 1 and 2 of four: the ways of two stages, named by their places in the whole."""
    fives, ones = [5] * 4, [1] * 4
    chain = Chain.from_arrays(
        "four", 1, forward_s=ones, backward_s=ones, output_bytes=ones, saved_bytes=fives
    )
    problem = Problem(chain)
    table = problem.solve_exact(50, max_points=10**6, max_work=10**6)
    ways = set()
    for memory in range(1, 16):
        runs, _ = list_runs(problem.line, table, memory, 1, 3)
        ways.add(tuple(f"F{op}" if op < 4 else f"B{8 - op}" for op in runs.tolist()))
    assert () in ways  # too little memory
    assert ways - {()} == set(replays(1, 3))


def test_many_runs_are_all_listed():
    """A long chain in the least memory repeats far more than there is room for at first."""
    chain = unit_chain(24)
    problem = Problem(chain)
    least = problem.min_feasible_bytes
    table = problem.solve_exact(least, max_points=10**6, max_work=10**7)
    runs, _ = list_runs(problem.line, table, least - problem.outside_bytes, 0, 24)
    assert runs.size > 4 * 24 + 16
    assert sorted(set(runs.tolist())) == list(range(49))
    found = simulate(chain, Schedule(chain.op_names, runs))
    assert (found.peak_bytes, found.makespan_s) == (least, problem.time_s(table, least))
