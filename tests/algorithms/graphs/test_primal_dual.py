"""The first-order method: what it proves, against all points, simplex and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from chains import random_graph
from fixed_order import fixed_order_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.algorithms.graphs import _cut_places, _milp, _spread_relaxations
from schedsim.algorithms.graphs._cut_model import cut_milp
from schedsim.algorithms.graphs._cut_search import CutSearch
from schedsim.algorithms.graphs._primal_dual import BoxedProgram, descend
from schedsim.algorithms.graphs.bounds import least_memory_bytes, time_bound_s
from scipy.optimize import linprog
from scipy.sparse import csr_array
from tiers import examples
from training_graphs import random_training_graph

from schedsim import Graph, Schedule, simulate
from schedsim.plans.effort import Effort


def peak_of(graph: Graph) -> int:
    return simulate(graph, Schedule.store_all(graph)).peak_bytes


def random_program(rng: np.random.Generator) -> BoxedProgram:
    """Of one to five columns, of which some are fixed, and rows that may exclude one another."""
    num_rows, num_columns = (int(rng.integers(1, 6)) for _ in range(2))
    lb = rng.integers(-2, 2, num_columns).astype(float)
    return BoxedProgram(
        matrix=csr_array(rng.integers(-3, 4, (num_rows, num_columns)).astype(float)),
        most=rng.integers(-6, 7, num_rows).astype(float),
        cost=rng.integers(-3, 6, num_columns).astype(float),
        lb=lb,
        ub=lb + rng.integers(0, 3, num_columns),
    )


def least_cost(program: BoxedProgram) -> float:
    """By the simplex method; infinite where there is no point."""
    box = np.stack([program.lb, program.ub], axis=1)
    found = linprog(program.cost, A_ub=program.matrix.toarray(), b_ub=program.most, bounds=box)
    return math.inf if found.status == 2 else float(found.fun)


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(150), deadline=None)
def test_any_prices_bound_any_point(seed):
    """No whole point that meets the rows costs less than what prices prove, bad prices included."""
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    sides = [
        range(int(low), int(high) + 1) for low, high in zip(program.lb, program.ub, strict=True)
    ]
    points = np.array(list(itertools.product(*sides)), float)
    fits = np.all(points @ program.matrix.toarray().T <= program.most, axis=1)
    best = float((points[fits] @ program.cost).min()) if fits.any() else math.inf
    for scale in (0.0, 1.0, 100.0):
        prices = scale * rng.normal(size=program.most.size)
        assert program.bound(prices) <= best
    assert program.bound(np.full(program.most.size, np.nan)) <= best


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(40), deadline=None)
def test_the_bound_comes_close_to_the_least_cost(seed):
    """Never above it; infinite only where the simplex method finds no point, too."""
    program = random_program(np.random.default_rng(seed))
    best = least_cost(program)
    found = descend(program, Effort(0.02))
    assert found.bound <= best + 1e-9
    assert np.all(program.lb - 1e-9 <= found.x)
    assert np.all(found.x <= program.ub + 1e-9)
    if best < math.inf:
        scale = float(np.abs(program.cost) @ np.maximum(np.abs(program.lb), np.abs(program.ub)))
        assert found.bound >= best - 0.05 * scale - 1e-6


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(40), deadline=None)
def test_rows_of_signs_are_rows_like_others(seed):
    """One 1 and two -1, or a part of them, beside rows of more of them or of other values."""
    rng = np.random.default_rng(seed)
    num_columns = int(rng.integers(3, 7))
    rows = np.zeros((int(rng.integers(2, 9)), num_columns))
    for row in rows:
        signs = [(1, -1, -1), (-1, -1), (1,), (1, -1), (1, 1, -1), (-1, -1, -1), (2, -1), (1, -3)]
        found = signs[int(rng.integers(len(signs)))]
        row[rng.choice(num_columns, len(found), replace=False)] = found
    program = BoxedProgram(
        matrix=csr_array(rows),
        most=rng.integers(-2, 3, rows.shape[0]).astype(float),
        cost=rng.integers(0, 6, num_columns).astype(float),
        lb=np.zeros(num_columns),
        ub=np.ones(num_columns),
    )
    best, found = least_cost(program), descend(program, Effort(0.05))
    assert found.bound <= best + 1e-9
    if best < math.inf:
        assert found.bound >= best - 0.05 * float(program.cost.sum()) - 1e-6
        assert program.bound(found.prices) == found.bound  # prices stand at the rows' own places


def relaxation(share: float) -> tuple[BoxedProgram, float]:
    """Of six cuts of a training graph, and its least cost."""
    graph = random_training_graph(np.random.default_rng(5), 40)
    search = CutSearch(graph, int(share * peak_of(graph)), "fixed", Effort(5.0))
    search.knapsacks()
    cuts = [search.places.cut(op) for op in sorted(search.places.spread(6))]
    program = cut_milp(search.table, cuts, search.times.costs)[0].boxed()
    return program, least_cost(program)


@pytest.mark.parametrize("share", [0.8, 0.5])
def test_relaxations_of_cuts_are_nearly_solved(share):
    """Within two percent, from below; and the point costs about as much."""
    program, best = relaxation(share)
    found = descend(program, Effort(5.0))
    assert 0.98 * best <= found.bound <= best * (1 + 1e-9)
    assert program.cost @ found.x == pytest.approx(best, rel=0.1)


def test_more_work_proves_no_less():
    """The work ends the steps; what is spent is counted; the same work proves the same."""
    program, _ = relaxation(0.5)
    bounds = []
    for num_steps in (40, 200, 2000):
        effort = Effort(num_steps / 40 * 3.2e-4)
        bounds.append(descend(program, effort).bound)
        assert effort.spent > 0
    assert bounds == sorted(bounds)
    assert descend(program, Effort(5 * 3.2e-4)).bound == bounds[1]
    halted = descend(program, Effort(5.0), halted=lambda: True)
    assert not halted.finished
    assert halted.bound <= bounds[-1]


def test_a_start_saves_steps_and_changes_no_proof():
    """Begun where it came to, the method proves nearly as much at once; from nonsense, no more."""
    program, best = relaxation(0.5)
    found = descend(program, Effort(1.0))
    few = Effort(1e-6)
    again = descend(program, few, start=(found.x, found.prices))
    assert again.bound > found.bound - 0.01 * best
    assert again.bound > descend(program, Effort(1e-6)).bound + 0.05 * best
    rng = np.random.default_rng(0)
    nonsense = rng.normal(size=found.x.size), 100 * rng.normal(size=found.prices.size)
    for effort in (1e-6, 0.05):
        assert descend(program, Effort(effort), start=nonsense).bound <= best * (1 + 1e-9)


def test_rows_that_exclude_one_another_are_told():
    """Prices that raise the bound above every cost prove that there is no point."""
    rows = csr_array(np.array([[1.0, 1.0], [-1.0, -1.0]]))
    zero, one = np.zeros(2), np.ones(2)
    program = BoxedProgram(rows, np.array([0.5, -1.5]), cost=one, lb=zero, ub=one)
    assert math.isinf(descend(program, Effort(0.1)).bound)
    possible = BoxedProgram(rows, np.array([1.5, -0.5]), cost=one, lb=zero, ub=one)
    assert descend(possible, Effort(0.1)).bound == pytest.approx(0.5, rel=1e-2)
    fixed = BoxedProgram(rows, np.array([1.5, -0.5]), cost=one, lb=one / 2, ub=one / 2)
    assert descend(fixed, Effort(0.1)).bound == pytest.approx(1.0)


@given(seed=st.integers(0, 10**12))
@settings(max_examples=examples(80), deadline=None)
def test_no_bound_of_cuts_is_above_an_optimum(seed):
    """All relaxations by this method, on graphs with every feature, at every kind of budget."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, int(rng.integers(2, 8)))
    peak, least = peak_of(graph), least_memory_bytes(graph)[0]
    with pytest.MonkeyPatch.context() as patch:
        for module in (_milp, _cut_places, _spread_relaxations):
            patch.setattr(module, "MOST_OF_SIMPLEX", 0)
        for budget in {least, peak - 1, int(rng.integers(min(least, peak), peak + 1))}:
            bound_s, _ = time_bound_s(graph, max(0, budget), effort=0.03)
            assert bound_s <= fixed_order_optimum(graph, max(0, budget)) * (1 + 1e-9)
