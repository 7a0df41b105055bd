"""Revolve against its closed form, the dynamic programme, and other implementations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from chains import random_chain, unit_chain
from schedsim.algorithms.chains.revolve import num_forwards, revolve, revolve_schedule

from schedsim import simulate

GRID = [(n, s) for n in range(1, 65) for s in range(1, 17)]


@cache
def by_programme(n: int, s: int) -> int:
    if n == 1:
        return 0
    if s == 1:
        return n * (n - 1) // 2
    return min(m + by_programme(n - m, s - 1) + by_programme(m, s) for m in range(1, n))


def forwards_of(num_stages: int, num_slots: int) -> int:
    runs = revolve_schedule(num_stages, num_slots).runs
    return int((runs < num_stages).sum())


@pytest.mark.parametrize(("n", "s"), [*GRID[::7], (10_000, 100), (10_000, 20), (1000, 1)])
def test_schedule_has_the_count_of_the_closed_form(n, s):
    """t(n, s) plain forwards and one before each backward."""
    assert forwards_of(n, s) == num_forwards(n, s) + n


def test_closed_form_and_schedule_on_the_whole_grid():
    """n <= 64, s <= 16: closed form, dynamic programme and schedule agree."""
    for n, s in GRID:
        assert num_forwards(n, s) == by_programme(n, s)
        assert forwards_of(n, s) == num_forwards(n, s) + n


@pytest.mark.parametrize(
    ("n", "s", "t"),
    [(10, 2, 20), (50, 3, 180), (100, 5, 316), (1000, 3, 12155), (1000, 100, 1898),
     (10_000, 20, 37976)],
)  # fmt: skip
def test_known_values(n, s, t):
    """Values of the closed form computed elsewhere."""
    assert num_forwards(n, s) == t


def test_gruslys_hidden_states():
    """Memory-efficient BPTT counts every forward: C(1000, 50) = 1948 + 1000."""
    assert forwards_of(1000, 50) == 2948


def test_slots_are_never_exceeded():
    """On unit stages the peak is s states and what one run adds, however long the chain.

    At a turn there are the s states stored, the current one, its output and two gradients.
    """
    for slots in range(1, 9):
        for num in (5, 20, 64, 200):
            chain = unit_chain(num)
            assert simulate(chain, revolve_schedule(num, slots)).peak_bytes <= slots + 4


def test_pyrevolve_agrees():
    """numforw counts plain forwards, as the closed form does."""
    pyrevolve = pytest.importorskip("pyrevolve", reason="pyrevolve is not installed")
    for n, s in [(n, s) for n, s in GRID if n > 1]:
        assert pyrevolve.numforw(n, s) == num_forwards(n, s)
    assert pyrevolve.numforw(10_000, 100) == num_forwards(10_000, 100)


def test_checkpoint_schedules_agrees():
    """checkpoint_schedules counts the forward before each backward: t(n, s) + n."""
    peer = pytest.importorskip(
        "checkpoint_schedules", reason="checkpoint_schedules is not installed"
    )
    for n, s in [(10, 3), (32, 5), (50, 3), (64, 8)]:
        steps = 0
        for action in peer.Revolve(n, s):
            if isinstance(action, peer.Forward):
                steps += action.n1 - action.n0
            if isinstance(action, peer.EndReverse):
                break
        assert steps == num_forwards(n, s) + n


def test_slots_come_from_the_budget():
    """More memory never gives a slower plan on equal stages, and every plan fits."""
    chain = unit_chain(40)
    least = revolve(chain, 0).min_feasible_bytes
    times = []
    for budget in range(least, 45):
        plan = revolve(chain, budget)
        assert plan.peak_bytes <= budget
        times.append(plan.makespan_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_infeasible_names_a_budget_that_works():
    """On uneven chains too the least budget named has a plan."""
    for seed in range(20):
        chain = random_chain(np.random.default_rng(seed), 11)
        assert revolve(chain, revolve(chain, 0).min_feasible_bytes).feasible


@pytest.mark.parametrize(("n", "s"), [(0, 1), (1, 0), (-3, 2)])
def test_undefined_counts_are_refused(n, s):
    """There is no t(n, s) below 1."""
    with pytest.raises(ValueError, match="at least 1"):
        num_forwards(n, s)
