"""Programmes built in blocks, against all points of tiny ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs import _milp
from schedsim.algorithms.graphs._cut_model import cut_milp
from schedsim.algorithms.graphs._cut_table import CutTable
from schedsim.algorithms.graphs._milp import Milp, milp_work, relaxation_work
from schedsim.algorithms.graphs._scaling import solver_times
from scipy.optimize import linprog
from tiers import examples

from schedsim import Schedule, simulate
from schedsim.plans.effort import Effort
from schedsim.workloads.synthetic_graphs import SYNTHETIC_GRAPHS


def knapsack(cost, weight, ub, at_least, *, whole=True) -> Milp:
    """min cost x with weight x >= at_least and 0 <= x <= ub."""
    milp = Milp()
    x = milp.variables(len(cost), ub=ub, cost=cost, integral=whole)
    milp.placed(1, (0, x, weight), lb=at_least, ub=np.inf)
    return milp


COEFFICIENTS = st.lists(st.integers(-3, 5), min_size=3, max_size=3)


@settings(max_examples=examples(30), deadline=None)
@given(
    cost=COEFFICIENTS,
    rows=st.lists(st.tuples(COEFFICIENTS, st.integers(-4, 8)), min_size=1, max_size=3),
)
def test_whole_numbers_are_the_best_of_all_points(cost, rows):
    """Three variables of 0 to 2; the relaxation is no dearer, and finds what does not exist."""
    milp = Milp()
    x = milp.variables(3, ub=2, cost=cost, integral=True)
    for weights, most in rows:
        milp.placed(1, (0, x, weights), lb=-np.inf, ub=most)
    points = [
        point
        for point in itertools.product(range(3), repeat=3)
        if all(np.dot(weights, point) <= most for weights, most in rows)
    ]
    answer = milp.solve(Effort(10.0))
    relaxed = milp.solve(Effort(10.0), integral=False)
    assert answer.finished
    assert answer.infeasible == (not points)
    if points:
        best = min(np.dot(cost, point) for point in points)
        assert answer.bound == pytest.approx(best)
        assert np.dot(cost, answer.x) == pytest.approx(best)
        assert tuple(np.rint(answer.x).astype(int)) in points
        assert relaxed.bound <= best + 1e-9
    if relaxed.infeasible:
        assert not points


@pytest.mark.parametrize("whole", [True, False])
def test_an_effort_beyond_what_the_solver_counts(whole):
    """It counts nodes and iterations in 32 bits."""
    milp = knapsack([3, 2], [2, 1], 1, 2)
    assert milp.solve(Effort(1e12), integral=whole).bound == pytest.approx(3)


def test_blocks_number_their_variables_and_rows():
    """A row per column; -1 is nothing; a row within the block may be named; limits broadcast."""
    milp = Milp()
    first = milp.variables(2, lb=[1, 2], ub=9)
    second = milp.variables(2, ub=[3, 4], cost=[0, 1])
    assert first.tolist() + second.tolist() == [0, 1, 2, 3]
    milp.rows(2, (first, 1.0), (np.array([2, -1]), [5.0, 7.0]), lb=[-1, -2])
    milp.placed(2, ([1, 1, 0], [0, 3, -1], 2.0), lb=0.0, ub=np.array([6, 8]))
    matrix, columns, lb, ub = milp._arrays()
    assert matrix.toarray().tolist() == [[1, 0, 5, 0], [0, 1, 0, 0], [0, 0, 0, 0], [2, 0, 0, 2]]
    assert columns["lb"].tolist() == [1, 2, 0, 0]
    assert columns["ub"].tolist() == [9, 9, 3, 4]
    assert columns["cost"].tolist() == [0, 0, 0, 1]
    assert (lb.tolist(), ub.tolist()) == ([-1, -2, 0, 0], [0, 0, 6, 8])
    assert milp.num_nonzeros == 5


def test_fractions_are_allowed_where_nothing_is_integral():
    """By hand: half of the second, which is cheaper by weight, and none of the first."""
    milp = knapsack([3, 4], [1, 2], 1, 1)
    assert milp.solve(Effort(1.0), integral=False).bound == pytest.approx(2)
    assert milp.solve(Effort(1.0)).bound == pytest.approx(3)


@pytest.mark.parametrize("most_of_simplex", [0, 10**9])
def test_relaxations_price_upper_limits(monkeypatch, most_of_simplex):
    """By hand: a unit more room is worth the 3 that the dearer of two saves; rows below have 0."""
    monkeypatch.setattr(_milp, "MOST_OF_SIMPLEX", most_of_simplex)
    milp = Milp()
    kept = milp.variables(2)
    again = milp.variables(2, cost=[3.0, 1.0])
    milp.rows(2, (kept, 1.0), (again, 1.0), lb=1.0, ub=np.inf)
    milp.placed(1, (0, kept, 1.0), lb=-np.inf, ub=0.5)
    answer = milp.solve(Effort(10.0), integral=False)
    assert answer.bound == pytest.approx(2.5, rel=0.01)
    assert answer.prices == pytest.approx([0, 0, 3], abs=0.1)


@pytest.mark.parametrize("most_of_simplex", [0, 10**9])
def test_relaxations_with_variables_that_have_no_limit(monkeypatch, most_of_simplex):
    """The first-order method has no bound for them: it gave no number, and a warning."""
    monkeypatch.setattr(_milp, "MOST_OF_SIMPLEX", most_of_simplex)
    milp = Milp()
    end = milp.variables(1, ub=np.inf, cost=1.0)
    again = milp.variables(2)
    milp.placed(1, (0, end, 1.0), (0, again, -1.0), lb=1.0, ub=np.inf)
    milp.placed(1, (0, again, 1.0), lb=1.0, ub=np.inf)
    answer = milp.solve(Effort(10.0), integral=False)
    assert answer.bound == pytest.approx(2.0, rel=0.01)


def hard_knapsack() -> Milp:
    """Which needs more than the first node."""
    rng = np.random.default_rng(3)
    weight = rng.integers(10**4, 10**5, 30)
    milp = Milp()
    x = milp.variables(30, cost=-weight.astype(float) - rng.integers(0, 50, 30), integral=True)
    for _ in range(4):
        some = rng.integers(10**4, 10**5, 30)
        milp.placed(1, (0, x, some), lb=-np.inf, ub=int(some.sum()) // 2 + 1)
    return milp


def test_work_ends_the_search_with_a_bound():
    """The node limit follows from the work left; what was spent is counted; the bound holds."""
    milp = hard_knapsack()
    little, more = Effort(0.01), Effort(0.5)
    cut_short, longer = milp.solve(little), milp.solve(more)
    assert not cut_short.finished
    assert little.spent >= milp_work(milp.num_nonzeros)
    assert more.spent > little.spent
    assert cut_short.bound <= longer.bound + 1e-6
    assert longer.bound <= milp.columns["cost"][0] @ longer.x + 1e-6
    assert milp.solve(Effort(0.01)).bound == cut_short.bound


def test_with_the_iterations_of_the_relaxation_work_is_counted_by_iterations():
    """The same optimum; the work is that of the iterations, whatever the size promises."""
    milp = hard_knapsack()
    relaxed = milp.solve(Effort(5.0), integral=False)
    by_size, by_pivots, short = Effort(50.0), Effort(50.0), Effort(1e-4)
    expected = milp.solve(by_size)
    found = milp.solve(by_pivots, pivots=relaxed.pivots)
    assert found.finished
    assert found.bound == pytest.approx(expected.bound, rel=1e-9)
    assert found.pivots > relaxed.pivots
    each = _milp._PIVOT + _milp._PIVOT_NONZERO * milp.num_nonzeros
    assert by_pivots.spent == pytest.approx(
        relaxation_work(milp.num_nonzeros) + each * found.pivots
    )
    cut_short = milp.solve(short, pivots=relaxed.pivots)
    assert not cut_short.finished
    assert cut_short.bound <= found.bound + 1e-6


def test_an_infeasible_program_is_known_as_such_by_iterations_too():
    """Two rows that exclude each other."""
    milp = Milp()
    x = milp.variables(2, cost=1.0, integral=True)
    milp.placed(1, ([0, 0], x, 1.0), lb=2.0, ub=np.inf)
    milp.placed(1, ([0, 0], x, 1.0), lb=-np.inf, ub=1.0)
    answer = milp.solve(Effort(5.0), pivots=1)
    assert answer.infeasible
    assert answer.x is None


@pytest.mark.slow
def test_work_follows_the_iterations_of_the_solver():
    """A unit is what a core does in about a second: 2,500 iterations, with cuts and heuristics.

    Programs of three cuts of four families, of some 3,000 non-zeros. The first node alone used to
    be counted as a third of what it takes, or less.
    """
    iterations, effort = 0, Effort(50.0)
    for family, share, apart in (
        ("layered", 0.6, 20),
        ("tree", 0.5, 15),
        ("nested-skips", 0.5, 15),
        ("recurrent", 0.5, 15),
    ):
        graph = SYNTHETIC_GRAPHS[family](150)
        everything = simulate(graph, Schedule.store_all(graph))
        table = CutTable(graph, int(share * everything.peak_bytes), "fixed")
        costs = solver_times(graph.arrays.op_time_s).costs
        top = int(np.argmax(everything.memory_bytes))
        at = [op for op in (top - apart, top, top + apart) if op < graph.num_ops]
        milp, _ = cut_milp(table, [table.cut(op) for op in at], costs)
        assert milp.solve(effort).finished
        program = milp.boxed()
        told = linprog(
            program.cost,
            A_ub=program.matrix,
            b_ub=program.most,
            bounds=np.stack([program.lb, program.ub], axis=1),
            integrality=np.concatenate(milp.columns["integral"]),
            method="highs",
        )
        iterations += told.nit
    assert 1000 < iterations / effort.spent < 5000


def test_an_infinite_effort_has_a_watchdog():
    """Time ends it, and is noted, so that nobody calls the answer reproducible."""
    effort = Effort(time_limit_s=0.0)
    answer = hard_knapsack().solve(effort)
    assert not answer.finished
    assert effort.ended_by == "clock"


def test_estimates_of_work_grow():
    """A relaxation takes less than the first node; both grow with the programme."""
    assert 0 < relaxation_work(1) <= relaxation_work(10**6) < milp_work(10**6) < math.inf
    assert milp_work(2 * 10**6) > 2 * milp_work(10**6)
